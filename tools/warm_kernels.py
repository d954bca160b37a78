"""Run a command, such as pytest, whose notebooks need not wait for imports.

    python tools/warm_kernels.py MODULE,MODULE COMMAND …

The modules are imported once. A kernel that the command starts is a fork of this: a
process of its own, as far as a fresh one is after the same imports.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn


def serve(modules: str, command: list[str]) -> int:
    """Fork kernels until the command ends; its exit code."""
    sys.path.pop(0)  # the folder of this file: no notebook imports from it
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # without it, a kernel ends
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for module in ("ipykernel.kernelapp", "ipykernel.kernelspec", *modules.split(",")):
        importlib.import_module(module)
    gc.freeze()  # collections pass over what was imported
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        server.settimeout(0.2)
        argv = [sys.executable, "-IS", __file__, "--kernel", f"{folder}/socket"]
        spec = Path(folder, "kernels", "python3", "kernel.json")
        spec.parent.mkdir(parents=True)
        described = sys.modules["ipykernel.kernelspec"].get_kernel_dict()
        described["argv"] = [*argv, "{connection_file}"]
        spec.write_text(json.dumps(described))
        running = subprocess.Popen(command, env={**os.environ, "JUPYTER_PATH": folder})
        kernels: list[int] = []
        with contextlib.suppress(KeyboardInterrupt):  # it reaches the command, too
            while running.poll() is None:
                kernels = [k for k in kernels if not os.waitpid(k, os.WNOHANG)[0]]
                with contextlib.suppress(TimeoutError), server.accept()[0] as client:
                    kernels.append(os.fork() or be_kernel(client))
        code = running.wait()
        for kernel in kernels:
            os.kill(kernel, signal.SIGKILL)
            os.waitpid(kernel, 0)
        return code


def be_kernel(client: socket.socket) -> NoReturn:
    """Be the kernel that a client asked for, no longer than the client lives."""
    try:
        message, streams, *_ = socket.recv_fds(client, 4096, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        folder, connection_file = json.loads(message)
        os.chdir(folder)
        client.settimeout(None)
        client.send(str(os.getpid()).encode())
        threading.Thread(target=end_with, args=[client], daemon=True).start()
        sys.argv = ["ipykernel_launcher", "-f", connection_file]
        sys.modules["ipykernel.kernelapp"].launch_new_instance()
    finally:
        os._exit(0)


def end_with(client: socket.socket) -> NoReturn:
    """Wait until the client is gone, and go."""
    client.recv(1)
    os._exit(1)


def be_client(address: str, connection_file: str) -> None:
    """Be what Jupyter takes for the kernel: interrupt it, and end when it ends."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        message = json.dumps([os.getcwd(), connection_file]).encode()
        socket.send_fds(server, [message], [0, 1, 2])
        kernel = int(server.recv(20))
        signal.signal(signal.SIGINT, lambda *_: os.kill(kernel, signal.SIGINT))
        server.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "--kernel":
        be_client(*sys.argv[2:])
    else:
        sys.exit(serve(sys.argv[1], sys.argv[2:]))
