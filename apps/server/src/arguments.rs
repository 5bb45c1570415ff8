//! Command-line parsing by clap, with every error on one line.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write};
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error, FromArgMatches, Parser};

use crate::failure::{one_line, say};
use crate::nearest::nearest;
use crate::wrapped::{columns, wrapped};

/// Columns of help texts that go to no terminal, and on one at most.
const HELP_COLUMNS: usize = 80;
const HELP_COLUMNS_MAX: usize = 100;

/// Parses the arguments. `Err` has said what there is to say (help, version or a complaint) and holds the
/// exit status. `short_help` is the template of the program's own `-h`, if it has another one than of `--help`.
pub fn parse<P: Parser + FromArgMatches + CommandFactory>(
    arguments: impl IntoIterator<Item = OsString>,
    short_help: Option<&'static str>,
) -> Result<P, ExitCode> {
    let command = with_negative_values(P::command());
    let arguments = without_help_command(&command, arguments.into_iter().collect());
    let is_short = arguments.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let command = with_help(command, is_short, "");
    let command = match short_help.filter(|_| is_short) {
        Some(template) => command.help_template(template),
        None => command,
    };
    let commands = commands(&command, &arguments);
    let name = commands.iter().map(|command| command.get_name()).collect::<Vec<_>>().join(" ");
    let names = Names::of(&commands);
    let is_json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let width = match columns() {
        usize::MAX => HELP_COLUMNS,
        width => width.min(HELP_COLUMNS_MAX),
    };
    let parsed = command.term_width(width).try_get_matches_from(arguments);
    parsed.and_then(|matches| P::from_arg_matches(&matches)).map_err(|error| {
        // A closed pipe is no failure of ours.
        match error.kind() {
            ErrorKind::DisplayHelp => {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            ErrorKind::DisplayVersion => {
                let text = error.to_string();
                let (name, version) = text.trim_end().split_once(' ').unwrap_or_default();
                let _ = writeln!(io::stdout(), "{}", wrapped(&format!("{name} "), version, columns()));
                return ExitCode::SUCCESS;
            }
            _ => {}
        }
        say(&name, &complaint(&error, &name, &names), is_json);
        ExitCode::from(2)
    })
}

/// Lets `-1` be a value, so that it is refused as one, and not as an option that was not meant.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    command.mut_subcommands(with_negative_values)
}

/// Lets `-h` fit a screen: it has the usual options, those that do not hide there, and names `--help`, which has all of them in the
/// same form. `above`: the commands that it belongs to, with a space behind each.
fn with_help(command: clap::Command, is_short: bool, above: &str) -> clap::Command {
    let name = format!("{above}{}", command.get_name());
    let has_more = command.get_arguments().any(clap::Arg::is_hide_short_help_set);
    let command = command.mut_args(|argument| {
        let is_hidden = argument.is_hide_set() || is_short && argument.is_hide_short_help_set();
        // Else clap sets every option of `--help` on two lines.
        let argument = argument.hide(is_hidden).hide_short_help(false);
        if is_short { argument.help_heading(Resettable::Reset) } else { argument }
    });
    let (after, long) = (command.get_after_help().cloned(), command.get_after_long_help().cloned());
    let after = match (is_short, long) {
        (false, Some(long)) => Some(long),
        (true, _) if has_more => {
            let after = after.map_or_else(String::new, |after| after.to_string());
            Some(format!("`{name} --help` has all options\n{after}").into())
        }
        _ => after,
    };
    let command = match after {
        Some(after) => command.after_help(after),
        None => command,
    };
    let above = format!("{name} ");
    command.after_long_help(Resettable::Reset).mut_subcommands(|inner| with_help(inner, is_short, &above))
}

/// `stag help ls` means `stag ls --help`, and `stagd help` `stagd --help`, where `help` is neither a command nor an argument.
fn without_help_command(command: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_help = arguments.get(1).is_some_and(|word| word == "help");
    let is_other = command.find_subcommand("help").is_some() || command.get_positionals().next().is_some();
    if is_help && !is_other {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

/// What is wrong with a value, in our words where the standard library has too few.
fn problem(source: &(dyn std::error::Error + 'static), value: &str) -> String {
    let Some(error) = source.downcast_ref::<ParseIntError>() else { return source.to_string() };
    match error.kind() {
        IntErrorKind::PosOverflow => format!("{value} is too large; write a smaller number"),
        _ => format!("{value:?} is not a number; write a whole one, as in 64"),
    }
}

/// clap's error on one line: what, the value found, what is possible, and where to read on.
fn complaint(error: &Error, name: &str, names: &Names) -> String {
    let of = |kind| error.get(kind).map(text).unwrap_or_default();
    let argument = of(ContextKind::InvalidArg);
    // `--size <SIZE>`: the placeholder says nothing that the complaint does not.
    let argument = argument.split(" <").next().unwrap_or_default();
    let value = of(ContextKind::InvalidValue);
    let mut line = match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!("unknown option {argument}")
        }
        ErrorKind::UnknownArgument => format!("unexpected argument {argument:?}"),
        ErrorKind::InvalidSubcommand => {
            format!("there is no command {:?}", of(ContextKind::InvalidSubcommand))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let example = if name == "stag" { "; try `stag demo`" } else { "" };
            format!("a command is missing{example}")
        }
        ErrorKind::MissingRequiredArgument => format!("{argument} is missing"),
        ErrorKind::InvalidValue if value.is_empty() => format!("{argument} has no value"),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => match error.source() {
            Some(source) if argument.starts_with('<') => problem(source, &value),
            Some(source) => format!("{argument}: {}", problem(source, &value)),
            None => format!("{argument}: invalid value {value:?}"),
        },
        ErrorKind::ArgumentConflict => {
            let other = of(ContextKind::PriorArg);
            if other == argument {
                format!("{argument} is given more than once")
            } else {
                format!("{argument} cannot be combined with {other}")
            }
        }
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
        _ => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        }
    };
    let possible = of(ContextKind::ValidValue);
    if !possible.is_empty() {
        line = format!("{line}; use one of: {possible}");
    }
    let meant = match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            nearest(argument, names.options.iter().map(String::as_str))
        }
        ErrorKind::InvalidSubcommand => {
            nearest(&of(ContextKind::InvalidSubcommand), names.commands.iter().map(String::as_str))
        }
        _ => None,
    };
    if let Some(meant) = meant {
        line = format!("{line}; did you mean {meant}");
    }
    one_line(&format!("{line} (see `{name} --help`)"))
}

fn text(value: &ContextValue) -> String {
    match value {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::StyledStr(text) => text.to_string(),
        ContextValue::StyledStrs(texts) => {
            texts.iter().map(StyledStr::to_string).collect::<Vec<_>>().join(", ")
        }
        ContextValue::Number(number) => number.to_string(),
        ContextValue::Bool(yes) => yes.to_string(),
        _ => String::new(),
    }
}

/// The command in whose arguments the error is, behind those that it belongs to, as `stag`, `hugepages`, `setup`: clap does not
/// always say.
fn commands<'c>(command: &'c clap::Command, arguments: &[OsString]) -> Vec<&'c clap::Command> {
    let mut commands = vec![command];
    for word in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        commands.extend(commands[commands.len() - 1].find_subcommand(word));
    }
    commands
}

/// What can be written for an option or a command that there is not.
struct Names {
    options: Vec<String>,
    commands: Vec<String>,
}

impl Names {
    /// Those of the last command; options of the first ones may be its own, too.
    fn of(commands: &[&clap::Command]) -> Names {
        let options = commands.iter().flat_map(|command| command.get_arguments());
        let last = commands.last().into_iter();
        let below =
            last.flat_map(|command| command.get_subcommands()).filter(|command| !command.is_hide_set());
        Names {
            options: options.filter_map(|option| Some(format!("--{}", option.get_long()?))).collect(),
            commands: below.map(|command| command.get_name().to_owned()).collect(),
        }
    }
}
