# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Opens a profile in speedscope, in a browser without a window, and has it export what it shows. Prints the spans as ../perfetto.py does:
# speedscope shows one thread, without a number.
#
# usage: speedscope.py INDEX.HTML PROFILE

import base64
import html
import json
import pathlib
import re
import subprocess
import sys

# What speedscope's own command has the page load; then Ctrl-S, until the page saves a file. The text replaces the page.
SCRIPT = """
const end = text => {
    const shown = document.createElement("pre");
    shown.id = "end";
    shown.textContent = text;
    document.body.replaceChildren(shown);
};
window.onerror = message => end("error: " + message);
URL.createObjectURL = file => { file.text().then(end); return "#"; };
speedscope.loadFileFromBase64("profile.json", "PROFILE");
const save = () => {
    if (document.getElementById("end")) return;
    window.dispatchEvent(new KeyboardEvent("keydown", {key: "s", keyCode: 83, which: 83, ctrlKey: true}));
    setTimeout(save, 100);
};
save();
"""

BROWSER = [
    "chromium-headless-shell",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--use-angle=swiftshader",  # speedscope needs WebGL
    "--enable-unsafe-swiftshader",
    "--virtual-time-budget=60000",
    "--dump-dom",
]

index, profile = (pathlib.Path(path).resolve() for path in sys.argv[1:])
script = pathlib.Path("open.js").resolve()
script.write_text(SCRIPT.replace("PROFILE", base64.b64encode(profile.read_bytes()).decode()))
page = subprocess.run(
    BROWSER + [f"file://{index}#localProfilePath={script}"],
    check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
).stdout
title = re.search("<title>(.*?)</title>", page)
assert title and title[1] == "profile.json - speedscope", f"the title is {title and title[1]}"
shown = re.search('<pre id="end">(.*?)</pre>', page, re.DOTALL)
assert shown, "speedscope exports nothing"
exported = json.loads(html.unescape(shown[1]))
[opened] = exported["profiles"]
assert opened["type"] == "evented" and opened["unit"] == "milliseconds", opened["unit"]
frames = exported["shared"]["frames"]
for event in opened["events"]:
    name = " " + frames[event["frame"]]["name"] if event["type"] == "O" else ""
    print(f"{round(event['at'] * 1e6)} 0{name}")
