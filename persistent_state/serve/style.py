"""The style and the script of the page, which stand in the page itself, and the policy that lets a browser run nothing else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1a1c1e;--muted:#4a5560;--rule:#78838d;--link:#0b57d0;--warn:#8c1d18;
--warn-page:#fdeceb;--soft:#f1f3f5;--c0:#0b57d0;--c1:#b3261e;--c2:#1b7f3b;--c3:#8a4b00;--c4:#7b1fa2;--c5:#00697a}
@media(prefers-color-scheme:dark){:root{--page:#14171a;--text:#e6e8ea;--muted:#aab4bd;--rule:#7d8891;--link:#8ab4f8;
--warn:#f2b8b5;--warn-page:#3b1a18;--soft:#1e2327;--c0:#8ab4f8;--c1:#f2b8b5;--c2:#81c995;--c3:#fdd663;--c4:#d7aefb;
--c5:#78d9ec}}
*{box-sizing:border-box}
body{margin:0 auto;padding:0 16px 48px;max-width:1100px;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.25rem;margin-top:2rem}
h3{font-size:1.05rem;margin:1.8rem 0 .4rem}
a{color:var(--link)}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:16px;top:8px;background:var(--page);padding:.5em;z-index:1}
.wide{overflow-x:auto;margin:.4rem 0;background:
linear-gradient(to right,var(--page) 50%,transparent) 0 0/3rem 100% no-repeat local,
linear-gradient(to left,var(--page) 50%,transparent) 100% 0/3rem 100% no-repeat local,
linear-gradient(to right,var(--rule),transparent) 0 0/.9rem 100% no-repeat scroll,
linear-gradient(to left,var(--rule),transparent) 100% 0/.9rem 100% no-repeat scroll}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
caption{text-align:left;white-space:nowrap;color:var(--muted);padding:.2em 0}
th,td{padding:.3em 1em .3em 0;text-align:left;vertical-align:top}
thead th{border-bottom:1px solid var(--rule)}tbody tr+tr>*{border-top:1px solid var(--soft)}
tbody th{font-weight:600}.facts th{font-weight:400;color:var(--muted);white-space:nowrap}
.right{text-align:right;white-space:nowrap}
.sample{overflow-wrap:anywhere;min-width:16em;font-family:ui-monospace,monospace}
.says{font-size:1.1rem;background:var(--soft);border-left:4px solid var(--link);padding:.6em .9em;
overflow-wrap:anywhere}
.error{background:var(--warn-page);color:var(--warn);border-left:4px solid var(--warn);padding:.6em .9em;
overflow-wrap:anywhere}
.muted{color:var(--muted)}
pre{background:var(--soft);padding:.8em;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
details{border:1px solid var(--rule);border-radius:6px;padding:.4em .8em;margin:.6em 0}
summary{cursor:pointer;padding:.3em 0}
.field{display:flex;flex-wrap:wrap;gap:.3em .8em;align-items:center;margin:.6em 0}
.field>label:first-child{min-width:9em}
input,select,button{font:inherit;color:inherit;background:var(--page);border:1px solid var(--rule);border-radius:4px;
padding:.35em .6em;
max-width:100%}
input[type=checkbox]{width:1.15em;height:1.15em;accent-color:var(--link)}
button{background:var(--soft);padding:.45em 1.2em;cursor:pointer}
.chart{display:block;width:100%;max-width:860px;font:13px system-ui,sans-serif}
.scaled{min-width:640px;height:auto}
.chart text{fill:var(--text)}.chart .name{paint-order:stroke;stroke:var(--page);stroke-width:4px}
.chart .small{font-size:11px;fill:var(--muted)}
.rail{stroke:var(--rule);stroke-opacity:.45}.span{stroke:var(--c0);stroke-width:2}
.global{stroke:var(--text);stroke-width:2;stroke-dasharray:5 4}
.back{stroke:var(--c1);stroke-width:2;stroke-dasharray:2 3}
.clock{fill:var(--c0)}.newest{fill:var(--page);stroke:var(--c0);stroke-width:2}.output{fill:var(--c2)}
.kept{fill:var(--c3);r:3.5px}
.line{fill:none;stroke-width:2}.total{stroke:var(--text);stroke-width:2.5;stroke-dasharray:7 4}
.colour0{stroke:var(--c0)}.colour1{stroke:var(--c1);stroke-dasharray:10 3}
.colour2{stroke:var(--c2);stroke-dasharray:3 3}
.colour3{stroke:var(--c3);stroke-dasharray:10 3 3 3}.colour4{stroke:var(--c4);stroke-dasharray:1 3}
.colour5{stroke:var(--c5);stroke-dasharray:14 4}
.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:.2em 0}
.key svg{width:34px;height:10px;margin-right:.4em}
.drawn{max-width:none}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3em 1.2em}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
"""

SCRIPT = """
(() => {
  const box = document.getElementById("refresh");
  if (!box) return;
  const message = document.getElementById("message");
  box.closest("p").hidden = false;
  const show = text => { if (message.textContent !== text) message.textContent = text; };
  const place = (old, now) => {
    if (old.innerHTML === now.innerHTML) return;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    if (old.contains(document.activeElement) && !focused) return;
    for (const each of old.querySelectorAll("details[id]")) {
      const other = now.querySelector("#" + CSS.escape(each.id));
      if (other) other.open = each.open;
    }
    const scrolled = [...old.querySelectorAll(".wide")].map(each => each.scrollLeft);
    old.replaceChildren(...now.childNodes);
    old.querySelectorAll(".wide").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
    if (focused) document.getElementById(focused)?.focus({preventScroll: true});
  };
  // What was looked up stays as it is: only the application is asked for again.
  const url = new URL(location.href);
  for (const name of [...url.searchParams.keys()]) if (name !== "application") url.searchParams.delete(name);
  url.hash = "";
  const look = async () => {
    if (box.checked && !document.hidden) {
      try {
        const answer = await fetch(url, {cache: "no-store", redirect: "error"});
        if (answer.status === 401) return location.reload();
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const old of document.querySelectorAll("[data-live]")) {
          const now = page.getElementById(old.id);
          if (now) place(old, document.adoptNode(now));
        }
        show("");
      } catch {
        show("The server does not answer. What is shown is what was there last.");
      }
    }
    setTimeout(look, 5000);
  };
  setTimeout(look, 5000);
})();
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(SCRIPT)}",
        "img-src data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The content security policy of every answer: own style and script, own forms, and nothing from elsewhere."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""
