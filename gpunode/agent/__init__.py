"""The agent, which runs on a host: reads facts (`probe`), makes changes (`apply`), follows, confirms or ends an apply.

It uses only the standard library, Python 3.6 syntax and this package. `bundle` joins its modules into the one text that is
sent over the connection (wire.py); no program stays on the host. A job is one JSON object; the answer is one JSON object
a line between `@gpunode-begin NONCE` and `@gpunode-end NONCE`.

Every path is taken below GPUNODE_ROOT (default `/`) and every command is found by PATH. A job may set, in seconds: how long
a restarted unit must stay up (`settle`), when its files are restored if the restart was not verified (`restore`), how long
to wait for the package manager's locks (`apt_wait`), for the facts (`patience`) and for a confirmation from outside
(`confirm`; 0: none is needed), and the silence after which `alive` is sent (`beat`).

An apply runs in a process of its own, a transient systemd unit where there is systemd, and writes its messages to a file.
The process that the connection started only follows that file, so a lost connection stops nothing.

    /run/gpunode/lock              held by the running apply, through its reboot; names its owner
    /run/gpunode/RUN/              program, job, messages.jsonl and packages.log of a running apply, gone when it has ended
    /var/lib/gpunode/runs/RUN/     messages.jsonl, journal.jsonl with the originals in files/, output.log of apt or dnf,
                                   unconfirmed-N.json of a restart; of the last KEPT_RUNS applies, and those with the oldest originals

job.json, guard.json, unconfirmed-N.json, each line of journal.jsonl and the first of messages.jsonl carry the version of their format. Older
versions are read; a newer one is refused with its number.

The files that a restart reads are guarded: before the first of them is written, RUN/guard.json records what worked and
which files to restore unless all of that works after the restart, and the host is reachable from outside. While it exists, the first of these restores them: the
apply itself, a timer, gpunode-restore.service at a boot, or the next apply.
"""
