"""Find the Chromium that the browser tests drive, or fetch one.

python tools/browser.py     print the browser's path, fetching Chromium if need be

No system package is installed but where CI=true: there a whole machine is ours.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SHELL = "chromium-headless-shell"  # without a window: pages take less time
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    """The path of a Chromium on this machine: the system's, else playwright's own."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
    shells = own.parents[2].glob("chromium_headless_shell-*/*/*headless*shell*")
    for path in (*sorted(shells, reverse=True), own):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def install() -> None:
    """Fetch playwright's own Chromium; only a CI machine gets Debian's package instead.

    Raises:
        subprocess.CalledProcessError: where that fails.
    """
    own = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    fetched = subprocess.run(own, check=False, stdout=sys.stderr)
    if os.environ.get("CI") == "true" and shutil.which("apt-get"):
        if fetched.returncode == 0 and starts(find()):
            return
        apt_get = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
        packages = [*apt_get, "install", "-y", "-qq"]
        subprocess.run([*apt_get, "update", "-qq"], check=True, stdout=sys.stderr)
        shell = subprocess.run([*packages, SHELL], check=False, stdout=sys.stderr)
        if shell.returncode:  # there is none, as in Ubuntu
            subprocess.run([*packages, "chromium"], check=True, stdout=sys.stderr)
    else:
        fetched.check_returncode()


def starts(path: str | None) -> bool:
    """Whether this browser starts: playwright's own may lack a library."""
    command = [path or "", "--no-sandbox", "--version"]
    return bool(path) and not subprocess.run(command, capture_output=True).returncode


def main() -> int:
    """Make sure that there is a browser, and say which."""
    path = find()
    if path is None:
        print("No Chromium here: fetching playwright's.", file=sys.stderr)
        try:
            install()
        except subprocess.CalledProcessError:
            print(
                "Could not fetch it. Install Chromium or Chrome yourself (on Debian: "
                "apt-get install chromium), and make again.",
                file=sys.stderr,
            )
            return 1
        path = find()
    print(path or "no Chromium, even after installing it")
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
