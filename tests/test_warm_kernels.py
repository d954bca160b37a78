"""Kernels that are forks: each apart, interrupted, ended, and none left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WARM = Path(__file__).resolve().parent.parent / "tools" / "warm_kernels.py"
SCRIPT = """
import os, time
from jupyter_client.manager import start_new_kernel

(one, first), (other, second) = start_new_kernel(), start_new_kernel()

def run(client, code):
    said = []
    def hook(message):
        said.append(message["content"].get("text", ""))
    # A kernel that stops at an error passes over what comes soon after it.
    reply = client.execute_interactive(
        code, output_hook=hook, timeout=60, stop_on_error=False
    )
    return reply["content"]["status"], "".join(said)

ok, imported = run(first, "import sys; x = 1; print('colorsys' in sys.modules)")
assert (ok, imported) == ("ok", "True\\n")
print(run(first, "import os; print(os.getcwd(), os.getpid())")[1], flush=True)
assert run(second, "x")[0] == "error"
second.execute("print('on')\\nwhile True: pass", stop_on_error=False)
while second.get_iopub_msg(timeout=60)["content"].get("text") != "on\\n":
    pass
other.interrupt_kernel()
assert second.get_shell_msg(timeout=60)["content"]["ename"] == "KeyboardInterrupt"
assert run(second, "1")[0] == "ok"
second.execute("import os; os.abort()")
while other.is_alive():
    time.sleep(0.1)
os._exit(7)  # and leave the first one running
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a kernel is a fork")
def test_kernels_are_apart_and_none_is_left(tmp_path: Path) -> None:
    command = [sys.executable, WARM, "colorsys", sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 7, done.stderr
    folder, kernel = done.stdout.split()
    assert Path(folder) == tmp_path
    with pytest.raises(ProcessLookupError):
        os.kill(int(kernel), 0)
