//! Flags that only some fabrics use. A flag that no chosen fabric uses is an error: its user expects an effect.

use crate::failure::CommandFailure;

/// Such a flag: its name, whether it was given, and the schemes of the addresses that use it.
pub type Flag = (&'static str, bool, &'static [&'static str]);

/// Refuses the flags that none of the schemes in `used` uses. `chosen_by` names the flag or argument that would choose another
/// scheme, if there is one.
pub fn check(flags: &[Flag], used: &[&str], chosen_by: Option<&str>) -> Result<(), CommandFailure> {
    let is_misplaced =
        |&&(_, is_given, users): &&Flag| is_given && !users.iter().any(|user| used.contains(user));
    let Some((name, _, users)) = flags.iter().find(is_misplaced) else { return Ok(()) };
    let mut used = used.to_vec();
    used.sort_unstable();
    used.dedup();
    if used.is_empty() {
        used.push("this command");
    }
    let instead =
        chosen_by.map_or_else(String::new, |by| format!(", or choose {} by {by}", list(users, "or")));
    Err(CommandFailure::usage(format_args!(
        "{name}: {} {} not use it, only {} {}; leave it out{instead}",
        list(&used, "and"),
        verb(&used),
        list(users, "and"),
        verb(users),
    )))
}

fn verb(subjects: &[&str]) -> &'static str {
    if subjects.len() == 1 { "does" } else { "do" }
}

/// `a, b and c`.
fn list(names: &[&str], conjunction: &str) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} {conjunction} {last}", rest.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [Flag; 3] = [
        ("--device", true, &["verbs"]),
        ("--crc", false, &["iwarp"]),
        ("--congestion-control", true, &["iwarp", "tcp"]),
    ];

    #[test]
    fn a_flag_that_one_of_several_fabrics_uses_is_fine() {
        check(&FLAGS, &["verbs", "tcp"], None).unwrap();
        check(&FLAGS, &["shm", "tcp", "verbs"], None).unwrap();
    }

    #[test]
    fn an_unused_flag_is_named_with_the_fabrics_that_use_it_and_the_repair() {
        for (used, chosen_by, expected) in [
            (
                &["shm", "tcp", "tcp"][..],
                Some("--listen"),
                "--device: shm and tcp do not use it, only verbs does; leave it out, or choose verbs by --listen",
            ),
            (
                &["verbs"],
                Some("the URL"),
                "--congestion-control: verbs does not use it, only iwarp and tcp do; leave it out, or choose iwarp or \
                 tcp by the URL",
            ),
            (&[], None, "--device: this command does not use it, only verbs does; leave it out"),
        ] {
            assert_eq!(check(&FLAGS, used, chosen_by), Err(CommandFailure::Usage(expected.to_owned())));
        }
    }
}
