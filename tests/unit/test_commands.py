"""The list of commands says of each what the command itself says."""

from gpuemu_flow.cli.main import COMMANDS, cli


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    cli.load_all()
    assert {name: c.get_short_help_str(limit=200) for name, c in cli.commands.items()} == COMMANDS
