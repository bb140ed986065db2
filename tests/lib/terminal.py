# SPDX-License-Identifier: Apache-2.0
"""Run a program on a terminal of its own, and see what it leaves behind.

usage: terminal.py END TEXT COMMAND...

Waits until TEXT is on the screen, ends the program by END and prints: how it
ended, whether the terminal's settings are what they were, whether the
alternate screen was left and the cursor is shown again.

END: q: that key, behind another one; a signal such as TERM; TSTP: stop it, go on,
and q; freeze=PID: that process is stopped, and q when nothing is drawn any more;
kill=PID: that process is killed.
"""
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

LIMIT_S = 30


def controlling(slave):
    def prepare():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return prepare


def read_some(master, seen, seconds):
    if select.select([master], [], [], seconds)[0]:
        try:
            seen += os.read(master, 65536)
        except OSError:
            pass
    return seen


def wait_for(condition, master, seen):
    end = time.monotonic() + LIMIT_S
    while not condition(seen):
        if time.monotonic() > end:
            sys.exit(f"nothing came; seen: {seen!r}")
        seen = read_some(master, seen, 0.05)
    return seen


def state(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def main():
    end, text, command = sys.argv[1], sys.argv[2].encode(), sys.argv[3:]
    master, slave = pty.openpty()
    # room for all; a new terminal has no size
    fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x32\0\x78\0\0\0\0\0")
    before = termios.tcgetattr(slave)
    child = subprocess.Popen(command, stdin=slave, stdout=slave,
                             stderr=slave, preexec_fn=controlling(slave))
    try:
        seen = wait_for(lambda s: text in s, master, b"")
        if end == "q":
            os.write(master, b"xq")
        elif end == "TSTP":
            child.send_signal(signal.SIGTSTP)
            seen = wait_for(lambda s: state(child.pid) == "T", master, seen)
            print("stopped with settings",
                  "restored" if termios.tcgetattr(slave) == before else "lost")
            child.send_signal(signal.SIGCONT)
            seen = wait_for(lambda s: s.count(b"\033[?1049h") == 2, master,
                            seen)
            os.write(master, b"q")
        elif end.startswith("freeze="):
            os.kill(int(end[7:]), signal.SIGSTOP)
            quiet_since, len_then = time.monotonic(), len(seen)
            while time.monotonic() < quiet_since + 1:
                seen = read_some(master, seen, 0.05)
                if len(seen) != len_then:
                    quiet_since, len_then = time.monotonic(), len(seen)
            os.write(master, b"q")
        elif end.startswith("kill="):
            os.kill(int(end[5:]), signal.SIGKILL)
        else:
            child.send_signal(getattr(signal, "SIG" + end))
        seen = wait_for(lambda s: child.poll() is not None, master, seen)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    while select.select([master], [], [], 0)[0]:
        seen = read_some(master, seen, 0)
    print("ended", child.returncode)
    print("settings",
          "restored" if termios.tcgetattr(slave) == before else "lost")
    print("screen", "left" if seen.rfind(b"\033[?1049l") >
          seen.rfind(b"\033[?1049h") else "kept")
    print("cursor", "shown" if seen.rfind(b"\033[?25h") >
          seen.rfind(b"\033[?25l") else "hidden")
    tail = seen[seen.rfind(b"\033[?1049l") + 8:].decode(errors="replace")
    if tail.strip():
        print("said", tail.strip())


main()
