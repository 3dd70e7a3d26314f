import os
import subprocess
import sys
import tempfile

from conftest import ROOT

from common.engine_folder import make_engine_folder

OTHER = """
import sys
from common.engine_folder import make_engine_folder
directory, owner = make_engine_folder(sys.argv[1])
print(directory, flush=True)
sys.stdin.read()
"""


def test_folders_of_killed_processes_are_swept_and_others_are_not(tmp_path, monkeypatch):
    temporary, memory = tmp_path / "tmp", tmp_path / "shm"
    temporary.mkdir(), memory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    command = [sys.executable, "-c", OTHER, str(memory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": temporary}, **pipes) for _ in range(2)]
    folders = [process.stdout.readline().strip() for process in others]
    for folder, instance in zip(folders, ("killed01", "alive002")):
        os.makedirs(f"{folder}/3")
        for separator in (" ", "\n"):
            with open(f"{folder}/3/arguments", "w") as file:
                file.write(separator.join(["-iwad", "x.wad", "+viz_instance_id", instance, "+viz_seed", "1"]))
        for name in ("ViZDoomGameState", "ViZDoomMessageQueue"):
            (memory / f"{name}{instance}").touch()
    (memory / "ViZDoomGameStateother003").touch()
    (temporary / "my-way-home-without-owner").mkdir()  # one that is just being made
    (temporary / "another program's").mkdir()
    others[0].kill()
    others[0].wait()

    mine, owner = make_engine_folder(memory)
    left = {os.path.basename(folder) for folder in (folders[1], mine)}
    assert set(os.listdir(temporary)) == left | {"my-way-home-without-owner", "another program's"}
    assert sorted(os.listdir(mine)) == ["owner"]
    assert sorted(os.listdir(memory)) == [
        "ViZDoomGameStatealive002",
        "ViZDoomGameStateother003",
        "ViZDoomMessageQueuealive002",
    ]
    others[1].kill()
    others[1].wait()
    _, another = make_engine_folder(memory)
    assert not os.path.exists(folders[1])
    assert os.path.exists(mine)
    owner.close(), another.close()
    for process in others:
        process.stdin.close(), process.stdout.close()
