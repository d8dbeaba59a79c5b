"""Prepare this tree for the release of a tag: check that the tag fits, and write down where the project is.

python .ci/release.py v0.1.0 https://HOST/OWNER/NAME

The workflow `.github/workflows/release.yml` runs this before it builds. The address is that of the repository in which the
workflow runs. It goes into the metadata, and into the links of README.md, which is the page of the release.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path


def version_of(root: Path) -> str:
    """Return the version that the package has."""
    module = ast.parse((root / "persistent_state" / "__init__.py").read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return str(ast.literal_eval(node.value))
    sys.exit("persistent_state/__init__.py has no __version__; write it as __version__ = '1.2.3'.")


def prepare(root: Path, tag: str, address: str) -> None:
    """Check the tag, and write the address."""
    version = version_of(root)
    if tag != f"v{version}":
        sys.exit(f"tag={tag} is not of version={version}; tag v{version}, or change persistent_state.__version__.")
    if not re.search(rf"^## {re.escape(version)}\b", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no section {version}; give its section Unreleased this name and the day.")
    address = address.rstrip("/")
    files = f"{address}/blob/{tag}"
    config = root / "setup.cfg"
    text = config.read_text(encoding="utf-8")
    if "project_urls" in text:
        sys.exit("setup.cfg has project_urls already; prepare a fresh checkout.")
    urls = {
        "Source": address,
        "Documentation": f"{files}/docs/first-task.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = "".join(f"    {name} = {url}\n" for name, url in urls.items())
    config.write_text(text.replace("\n[options]\n", f"project_urls =\n{lines}\n[options]\n", 1), encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), files), encoding="utf-8")


def absolute(page: str, files: str) -> str:
    """Return a page whose links to files of this repository work from anywhere."""
    return re.sub(r"(?<=\]\()(?![a-z][a-z0-9+.-]*:|#)", f"{files}/", page)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    prepare(Path.cwd(), *sys.argv[1:])
