"""What is asked for: a file's lines, or a built-in list of texts from one word to a paragraph."""

from __future__ import annotations

from pathlib import Path

from omni_core.errors import ConfigError

MAX_FILE_BYTES = 64 * 1024 * 1024

BUILT_IN: tuple[str, ...] = (
    "The ferry leaves from the second pier at a quarter past nine.",
    "Yes.",
    "Put two spoons of honey into the tea, stir it, and let it stand until you can hold the cup in both hands.",
    "Your parcel has arrived.",
    "How far is it to the next village, and is there a road along the river?",
    "On the third of May the old clock on the market square stopped. Nobody had wound it since the winter, and for a week the "
    "town was ten minutes late for everything: the bakery opened late, the school began late, even the rain seemed to wait.",
    "Good morning, this is the dentist's office.",
    "The lights went out, the music stopped, and somewhere below us a door closed.",
    "Turn left.",
    "We measured the bridge twice, in the heat of August and again in January, and the steel had moved by four centimetres.",
    "I would like a window seat, please, as near to the front as you have one.",
    "Order number 48 213 costs 17 euros and 60 cents; it will be with you between 8 and 11 on Tuesday.",
    "Wait, who told you that?",
    "First dry the apples on a sheet of paper. Then cut them into quarters, take out the cores, and lay them side by side in a "
    "dish. Pour the cream over them, and bake them for forty minutes.",
    "Thank you, that is all.",
    "Snow had covered the tracks before anyone thought of following them.",
    "The meeting moves to room twelve, because the projector in room nine is being repaired.",
    "No, not yet; ask me again in an hour.",
    "A heron stood in the shallow water, so still that the boys took it for a branch until it opened its wings.",
    "Your battery is at twenty percent.",
    "If the red lamp blinks, close the valve, wait for the pressure to fall below two bars, and only then open the lid.",
    "What a beautiful evening!",
    "She had learned the language from songs, so she could speak of moonlight and longing but could not ask for a spoon.",
    "Please hold the line.",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the lines of a UTF-8 file that are not empty.

    Raises:
        ConfigError: It cannot be read, or has none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", where="--prompts", hint="name a text file in UTF-8") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes", where="--prompts", hint="name a smaller file")
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise ConfigError(f"{path} has no text", where="--prompts", hint="write one prompt on each line")
    return prompts
