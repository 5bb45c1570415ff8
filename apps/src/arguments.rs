//! Command-line parsing by clap, with every error on one line.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error, FromArgMatches, Parser};

use crate::failure::{one_line, say};

/// Parses the arguments. `Err` has said what there is to say (help, version or a complaint) and holds the
/// exit status.
pub fn parse<P: Parser + FromArgMatches + CommandFactory>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<P, ExitCode> {
    let command = with_negative_values(P::command());
    let arguments = without_help_command(&command, arguments.into_iter().collect());
    let name = name(&command, &arguments);
    let is_json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let parsed = command.term_width(80).try_get_matches_from(arguments);
    parsed.and_then(|matches| P::from_arg_matches(&matches)).map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            // A closed pipe is no failure of ours.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        say(&name, &complaint(&error, &name), is_json);
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

/// `stag help ls` means `stag ls --help`, where there are commands but none called `help`.
fn without_help_command(command: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_help = arguments.get(1).is_some_and(|word| word == "help");
    if is_help && command.has_subcommands() && command.find_subcommand("help").is_none() {
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

/// Whether an option that was not given is likely to be what was meant.
fn is_likely(found: &str, suggested: &str) -> bool {
    let (found, suggested) = (found.trim_start_matches('-'), suggested.trim_start_matches('-'));
    distance(found.as_bytes(), suggested.as_bytes()) <= (found.len() / 3).max(1)
}

/// Octets to insert, remove or replace to make one text of the other.
fn distance(from: &[u8], to: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, octet) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(octet != other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[to.len()]
}

/// clap's error on one line: what, the value found, what is possible, and where to read on.
fn complaint(error: &Error, name: &str) -> String {
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
    for (kind, introduction) in [
        (ContextKind::ValidValue, "use one of:"),
        (ContextKind::SuggestedArg, "did you mean"),
        (ContextKind::SuggestedSubcommand, "did you mean"),
    ] {
        let possible = of(kind);
        let is_far = kind == ContextKind::SuggestedArg && !is_likely(argument, &possible);
        if !possible.is_empty() && !is_far {
            line = format!("{line}; {introduction} {possible}");
        }
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

/// The command in whose arguments the error is, as `stag hugepages setup`: clap does not always say.
fn name(command: &clap::Command, arguments: &[OsString]) -> String {
    let mut name = command.get_name().to_owned();
    let mut command = command;
    for word in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        if let Some(subcommand) = command.find_subcommand(word) {
            name = format!("{name} {}", subcommand.get_name());
            command = subcommand;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_it_is_proposed() {
        for (found, suggested, is_near) in [
            ("--rate", "--duration", false),
            ("--dept", "--depth", true),
            ("--listne", "--listen", true),
            ("--x", "--crc", false),
            ("--memroy", "--memory", true),
        ] {
            assert_eq!(is_likely(found, suggested), is_near, "{found} {suggested}");
        }
    }
}
