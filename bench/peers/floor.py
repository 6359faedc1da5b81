"""The least that such a run costs: a connection by paramiko to every host at once, and one command.

`python floor.py ADDRESSES PORT KEY KNOWN_HOSTS COMMAND`; what stands on standard input is each command's. Exit status 1: a command failed.
"""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import paramiko


def main(addresses: list[str], port: int, key_file: str, known_hosts: str, command: str) -> int:
    key = paramiko.Ed25519Key.from_private_key_file(key_file)
    known = paramiko.HostKeys(known_hosts)
    text = sys.stdin.buffer.read()

    def visit(address: str) -> int:
        sock = socket.create_connection((address, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.auth_timeout = 120
        transport.start_client(timeout=120)
        assert known.check(f"[{address}]:{port}", transport.get_remote_server_key())
        transport.auth_publickey("root", key)
        channel = transport.open_session(timeout=120)
        channel.exec_command(command)
        channel.sendall(memoryview(text))
        channel.shutdown_write()
        while channel.recv(65536):
            pass
        status = channel.recv_exit_status()
        transport.close()
        return status

    with ThreadPoolExecutor(len(addresses)) as pool:
        return max(map(abs, pool.map(visit, addresses)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), int(sys.argv[2]), *sys.argv[3:]))
