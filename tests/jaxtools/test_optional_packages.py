"""Packages that are imported where they are needed."""

import pytest

from jaximpact.jaxtools.optional_packages import import_optional


@pytest.mark.parametrize(("module", "package"), [("absent.part", "absent"), ("vtkmodules.absent", "vtk")])
def test_a_missing_package_is_named_as_pip_knows_it(module, package):
    with pytest.raises(ImportError, match=f"a picture needs .*: pip install {package}$"):
        import_optional(module, "a picture")
