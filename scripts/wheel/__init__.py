"""The package as a wheel installs it: in its place Python imports the one of the folder `files` beside this module.

`files` has the folders of a checkout side by side (pyproject.toml), so that all paths between them are the same here
and there, and a training that has this folder on its PYTHONPATH finds our packages and no others of this environment.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_PLACE = Path(__file__).resolve().parent / "files" / "harness"
_SPEC = spec_from_file_location(__name__, _PLACE / "__init__.py", submodule_search_locations=[str(_PLACE)])
assert _SPEC is not None
assert _SPEC.loader is not None
sys.modules[__name__] = _module = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_module)
