"""pyinfra's deploy: every reading is a fact of its own, or one fact runs them all; then the file is put."""

import io

from pyinfra import host
from pyinfra.facts.server import Command
from pyinfra.operations import files

for command in host.data.readings:
    host.get_fact(Command, command)
files.put(src=io.StringIO(host.data.content), dest=host.data.path, mode="644")
