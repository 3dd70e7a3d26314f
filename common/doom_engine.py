"""Starts ViZDoom's engine, a process of its own, so that whatever happens to it leaves this process alive.

The library (vizdoom 1.3) ends the whole program with a segmentation fault when its child process ends before the game
has started, and waits for ever when that is stopped. So its child is not the engine: it is a `cat` that reads from a
pipe which the engine holds open, and ends with it. While the game starts this process holds the pipe open, too. If the
engine is lost meanwhile, the library does not notice: its thread is left waiting, and another game is made.
"""

import glob
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future

import vizdoom

START_SECONDS = (10, 20, 60)  # for the first try, the second, the third: the machine may just be slow
SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_SIZE = 128 * 1024  # bytes that an engine takes of it: 96 kB were measured
ENGINE = os.path.join(os.path.dirname(vizdoom.__file__), "vizdoom")
ABANDONED = []  # games that never started; ending their pipes would end this process


def check_machine(directory, num_engines):
    """End the program with a sentence if engines cannot start here: the library would end it without one."""
    probe = os.path.join(directory, "probe")
    with open(probe, "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod(probe, 0o700)
    if not os.access(probe, os.X_OK):
        raise SystemExit(
            f"ViZDoom's engines do not start, since no program may run in {os.path.dirname(directory)} (noexec): "
            "set TMPDIR to a folder where it may, as in TMPDIR=$HOME python ..."
        )
    if not os.path.isdir(SHARED_MEMORY):  # macOS has another kind
        return
    status = os.statvfs(SHARED_MEMORY)
    free, needed = status.f_bavail * status.f_frsize, num_engines * SHARED_MEMORY_SIZE
    if free < needed:
        raise SystemExit(
            f"{num_engines} engines of ViZDoom need {needed // 1024} kB of {SHARED_MEMORY}, and {free // 1024} kB are "
            "free: remove files from it, type a smaller --num-envs, or start the container with --shm-size 1g."
        )


class DoomEngine:
    """`make_game` returns a DoomGame with its settings; it is called again when the engine has to be started anew."""

    def __init__(self, directory, make_game):
        self.directory, self.make_game = directory, make_game
        self.game = self.process = None

    def start(self):
        """Start an engine and its first episode, or end the program with a sentence."""
        # Never in many threads: engines that start at the same moment can hang.
        for seconds in START_SECONDS:
            try:
                reason = self._try_to_start(seconds)
            except OSError as error:  # no process, no file
                reason = str(error)
            if reason is None:
                return
        raise SystemExit(
            f"ViZDoom's engine does not start ({reason}; {len(START_SECONDS)} tries). If memory or processes ran out, "
            "type a smaller --num-envs; a run that has a checkpoint goes on with --resume."
        )

    def _try_to_start(self, seconds):
        directory = tempfile.mkdtemp(dir=self.directory)
        pipe, arguments, starter, log = (os.path.join(directory, n) for n in ("pipe", "arguments", "start", "log"))
        os.mkfifo(pipe)
        writer = os.open(pipe, os.O_RDWR)  # does not wait for a reader
        words_file = shlex.quote(arguments)
        with open(starter, "w") as file:  # nothing in it may fail: it would end, and this process with it
            file.write(
                f"#!/bin/sh\ntrap '' INT TERM HUP\nexec < {shlex.quote(pipe)}\n"
                f'printf "%s\\n" "$@" > {words_file}.new && mv {words_file}.new {words_file}\nexec cat\n'
            )
        os.chmod(starter, 0o700)
        game, started, words, process = self.make_game(), Future(), [], None
        game.set_vizdoom_path(starter)
        threading.Thread(target=_call, args=(game.init, started), daemon=True).start()
        try:
            deadline = time.monotonic() + seconds
            while not started.done():
                if process is None and os.path.exists(arguments):
                    with open(arguments) as file:
                        words = file.read().splitlines()
                    process = self._run(words, directory, writer, log)
                if process is not None and process.poll() is not None:
                    return f"it ended with {process.returncode}{_last_line(log)}"
                if time.monotonic() > deadline:
                    return f"silent for {seconds} seconds"
                time.sleep(0.005)
            if started.exception():
                return str(started.exception())
            os.close(writer)
            self.game, self.process, process = game, process, None
        finally:
            if self.game is not game:
                ABANDONED.append((game, writer))
            if process is not None:
                process.kill()
                process.wait()
            if "+viz_instance_id" in words:
                self.instance = words[words.index("+viz_instance_id") + 1]
                for file in glob.glob(f"{SHARED_MEMORY}/ViZDoom*{self.instance}"):
                    os.remove(file)  # who needs it has opened it by now; it would stay if this process was killed

    def _run(self, arguments, directory, writer, log):
        # An engine dies with this process where there is setpriv. It ignores signals like Ctrl-C, which go to a whole
        # group of processes: what happens then is for this process to decide. (In a session of its own it would be
        # slower, since the Linux scheduler deals out the time by sessions.)
        setpriv = [shutil.which("setpriv"), "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with open(log, "wb") as file:
            return subprocess.Popen(
                ["/bin/sh", "-c", "trap '' INT TERM HUP; exec \"$@\"", "sh", *setpriv, ENGINE, *arguments],
                cwd=directory,  # which it litters
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def kill(self):
        """End the engine's process; the library then raises an exception wherever it waits for it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self):
        """End the engine, even one that hangs, and the game."""
        self.kill()
        if self.game is not None:
            self.game.close()


def _call(function, future):
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)


def _last_line(log):
    with open(log, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return f": {lines[-1]}" if lines else ""
