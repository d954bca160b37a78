"""Find the Chromium that the browser tests drive, or install one.

python tools/browser.py     print the browser's path, installing Chromium if need be
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
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def install() -> None:
    """Debian's package where there is apt, else the browser that playwright fetches."""
    if shutil.which("apt-get"):
        apt_get = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
        packages = [*apt_get, "install", "-y", "-qq"]
        subprocess.run([*apt_get, "update", "-qq"], check=True, stdout=sys.stderr)
        shell = subprocess.run([*packages, SHELL], check=False, stdout=sys.stderr)
        if shell.returncode:  # there is none, as in Ubuntu
            subprocess.run([*packages, "chromium"], check=True, stdout=sys.stderr)
    else:
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> int:
    """Make sure that there is a browser, and say which."""
    path = find()
    if path is None:
        print("No Chromium here: installing it.", file=sys.stderr)
        try:
            install()
        except subprocess.CalledProcessError as error:
            print(f"could not install Chromium: {error}", file=sys.stderr)
            return 1
        path = find()
    print(path or "no Chromium, even after installing it")
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
