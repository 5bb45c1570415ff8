//! The command line as a user meets it: help that fits the screen, complaints of one line, exit statuses.

use std::process::{Command, Output, Stdio};

const STAG: &str = env!("CARGO_BIN_EXE_stag");
const STAGD: &str = env!("CARGO_BIN_EXE_stagd");

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The names in the list of commands of `stag --help`.
fn commands() -> Vec<String> {
    let help = run(STAG, &["--help"]);
    let lines = text(&help.stdout).lines();
    let indented = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    indented.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn every_help_fits_a_screen_and_shows_two_examples() {
    let commands = commands();
    for wanted in ["demo", "ping", "ls", "cat", "get", "put", "cp", "mv", "rm", "mkdir", "stat", "df"] {
        assert!(commands.iter().any(|name| name == wanted), "{wanted} is not in {commands:?}");
    }
    let mut screens = vec![(STAG, vec!["--help".to_owned()]), (STAGD, vec!["--help".to_owned()])];
    screens.extend(commands.into_iter().map(|name| (STAG, vec![name, "--help".to_owned()])));
    for (program, arguments) in screens {
        let help = Command::new(program).args(&arguments).output().unwrap();
        assert!(help.status.success(), "{arguments:?}");
        let help = text(&help.stdout);
        let lines_max = match arguments[0].as_str() {
            _ if program == STAGD => 48,
            "perf" => 44,
            // The list of commands.
            "--help" => 32,
            _ => 24,
        };
        assert!(help.lines().count() <= lines_max, "{arguments:?}: {} lines\n{help}", help.lines().count());
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
        }
        let examples =
            help.split_once("Examples: ").unwrap_or_else(|| panic!("{arguments:?}: no examples")).1;
        assert!(examples.trim().lines().count() >= 2, "{arguments:?}: two examples wanted: {examples}");
    }
}

/// `-h` fits the smallest screen. Where it has not all options it says where they are.
#[test]
fn short_help_fits_the_smallest_screen() {
    let mut screens = vec![(STAG, vec!["-h".to_owned()]), (STAGD, vec!["-h".to_owned()])];
    screens.extend(commands().into_iter().map(|name| (STAG, vec![name, "-h".to_owned()])));
    for (program, arguments) in screens {
        let help = Command::new(program).args(&arguments).output().unwrap();
        let help = text(&help.stdout);
        assert!(help.lines().count() <= 24, "{arguments:?}: {} lines\n{help}", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{arguments:?}: {help}");
        assert!(help.contains("Examples: "), "{arguments:?}: {help}");
    }
    let own = run(STAG, &["-h"]);
    let own: Vec<&str> = text(&own.stdout).split_whitespace().collect();
    for command in commands() {
        assert!(own.contains(&command.as_str()), "{command} is not in {own:?}");
    }
    for (program, arguments, more) in [
        (STAGD, &["-h"][..], "`stagd --help` has all options"),
        (STAG, &["perf", "-h"], "`stag perf --help` has"),
    ] {
        let short = run(program, arguments);
        assert!(text(&short.stdout).contains(more), "{}", text(&short.stdout));
    }
    // The other options are there all the same.
    let complaint = run(STAGD, &["--gracee", "5"]);
    assert!(text(&complaint.stderr).contains("did you mean --grace"), "{}", text(&complaint.stderr));
}

/// Manual pages have what `--help` has no room for, and nothing that is no user's.
#[test]
fn manual_pages_have_all_options() {
    let folder = std::env::temp_dir().join(format!("stag-manual-{}", std::process::id()));
    let generated = run(STAG, &["generate", folder.to_str().unwrap()]);
    assert!(generated.status.success(), "{}", text(&generated.stderr));
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap().replace("\\-", "-");
    let stagd = page("stagd.8");
    for part in [
        "--export",
        "--grace",
        "--exposure",
        "--core\\fR",
        "Time to reclaim locks",
        "EXPORT OPTIONS",
        "root_squash=yes|no",
        "see EXPORT",
    ] {
        assert!(stagd.contains(part), "{part:?} is not in {stagd}");
    }
    for part in ["until-eof", "help lists"] {
        assert!(!stagd.contains(part), "{part:?} is in {stagd}");
    }
    let perf = page("stag-perf.1");
    for part in ["--working-set", "--mix", "--paired", "METRIC"] {
        assert!(perf.contains(part), "{part:?} is not in {perf}");
    }
    let completions = std::fs::read_to_string(folder.join("_stagd")).unwrap();
    assert!(completions.contains("--shared-receives"), "{completions}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_bad_command_line_is_one_line_and_status_2() {
    let many_letters = format!("shm://{}", "n".repeat(80));
    let long_name = format!("shm://demo/data/{}", "n".repeat(256));
    let listen = ["--listen", "shm://demo"];
    let export = ["--export", "mem:/data"];
    let served = [export, listen].concat();
    let with = |more: &[&'static str]| [&served[..], more].concat();
    let cases: Vec<(&str, Vec<&str>, &str)> = vec![
        (STAG, vec![], "stag: a command is missing"),
        (STAG, vec!["frob"], "no command \"frob\""),
        (STAG, vec!["lss", "shm://demo"], "did you mean ls"),
        (STAG, vec!["sl", "shm://demo"], "did you mean ls"),
        (STAG, vec!["completions"], "no command \"completions\" (see"),
        (STAG, vec!["ping", "--cuont", "1", "shm://demo"], "unknown option --cuont; did you mean --count"),
        (STAG, vec!["hugepages"], "stag hugepages: a command is missing (see `stag hugepages --help`)"),
        (STAG, vec!["hugepages", "setup"], "stag hugepages setup: --count is missing"),
        (STAG, vec!["ls"], "stag ls: <URL> is missing"),
        (STAG, vec!["ls", "--frob", "shm://demo"], "stag ls: unknown option --frob"),
        (STAG, vec!["ls", "data"], "\"data\": it names no fabric"),
        (STAG, vec!["ls", "tcp://demo"], "\"tcp\" is no fabric; there are: shm, iwarp, verbs"),
        (STAG, vec!["ls", "iwarp://::1"], "\"::1\" has several colons; write an IPv6 address as [::1]"),
        (STAG, vec!["ls", "iwarp://host:x"], "\"x\" is not a port; write 1 to 65535"),
        (STAG, vec!["ls", "iwarp://host?mountport=x"], "mountport: \"x\" is not a port"),
        (STAG, vec!["ls", "verbs://host:x"], "\"x\" is not a port; write 1 to 65535"),
        (
            STAG,
            vec!["--exposure", "none", "ls", "verbs://host"],
            "use one of: window, registration, standing",
        ),
        (STAG, vec!["stat", &long_name], "a name has 256 octets, the limit is 255"),
        (
            STAG,
            vec!["ping", "-c", "x", "shm://demo"],
            "stag ping: --count: \"x\" is not a number; write a whole one",
        ),
        (
            STAG,
            vec!["ping", "-c", "99999999999999999999", "shm://demo"],
            "is too large; write a smaller number",
        ),
        (STAG, vec!["ping", "-c", "-1", "shm://demo"], "stag ping: --count: -1 is not in 1..=4294967295"),
        (STAG, vec!["perf", "null", "--reps", "5"], "stag perf: unknown option --reps"),
        (
            STAG,
            vec!["df", &many_letters],
            "the name has 80 characters, the limit is 64; choose a shorter one",
        ),
        (STAG, vec!["df", "shm://a b"], "' ' cannot be in a name; use letters, digits"),
        (STAG, vec!["demo", "--path", "/no/such"], "--path /no/such: No such file or directory"),
        (
            STAG,
            vec!["perf", "null", "--fabric", "iwarp", "--congestion-control", "nosuch"],
            "--congestion-control: \"nosuch\": this kernel has no such algorithm; it has: ",
        ),
        (STAG, vec!["demo", "--size-limit", "12Q"], "--size-limit: \"12Q\" is not a size; write 4096, 64K"),
        (STAGD, listen.to_vec(), "nothing to serve; give an --export"),
        (STAGD, export.to_vec(), "nowhere to listen; give a --listen"),
        (STAGD, with(&["--memory", "1K"]), "--memory 1 KiB: it must be 16 MiB to"),
        (STAGD, with(&["--memory", "100T"]), "this machine's RAM"),
        (
            STAGD,
            with(&["--inline-threshold", "512"]),
            "--inline-threshold 512 B: it must be 1 KiB to 256 KiB",
        ),
        (STAGD, with(&["--credits", "0"]), "--credits 0: it must be 1 to 1024"),
        (STAGD, with(&["--weight", "10.0.0.7"]), "\"10.0.0.7\" gives no weight; write CLIENT=N"),
        (STAGD, with(&["--weight", "10.0.0.7=0"]), "the weight must be 1 to 1000"),
        (STAGD, with(&["--credits", "abc"]), "--credits: \"abc\" is not a number; write a whole one"),
        (STAGD, with(&["--memory", "-1"]), "--memory: \"-1\" is not a size; write 4096, 64K, 512M or 1G"),
        (
            STAGD,
            [&export[..], &["--listen", "tcp://[::1]:7", "--congestion-control", "nosuch"]].concat(),
            "--congestion-control: \"nosuch\": this kernel has no such algorithm; it has: ",
        ),
        (
            STAGD,
            with(&["--state-dir", "/dev/null"]),
            "--state-dir /dev/null: is a file, and no directory; choose",
        ),
        (STAGD, with(&["--state-dir", "/proc/nope"]), "--state-dir /proc/nope: it cannot be made: "),
        (STAGD, [&listen[..], &["--export", "/srv"]].concat(), "no medium before \"/srv\": write dir:/PATH"),
        (
            STAGD,
            [&listen[..], &["--export", "mem:/a,size=2T"]].concat(),
            "the sizes (size=) add up to 2 TiB, but ",
        ),
        (
            STAGD,
            [&listen[..], &["--check", "--export", "mem:/a,size=2T"]].concat(),
            "the sizes (size=) add up to 2 TiB, but ",
        ),
        (
            STAGD,
            [&export[..], &["--listen", "shm://x,iwarp://0.0.0.0"]].concat(),
            "one place for each; give --listen",
        ),
        (STAGD, with(&["--poll", "lazy"]), "use one of: busy, adaptive"),
        (STAGD, with(&["--pages", "3m"]), "\"3m\": unknown page size; use one of: auto, 1g, 2m, thp, 4k"),
        (
            STAGD,
            [&export[..], &["--listen", "shm://demo/x"]].concat(),
            "path and mountport are the clients' matter",
        ),
        (
            STAGD,
            [&export[..], &["--listen", "iwarp://[::]?mountport=7"]].concat(),
            "write iwarp://[::]:20049",
        ),
        (STAGD, with(&["--config", "/no/such.toml"]), "/no/such.toml: No such file"),
        (
            STAGD,
            with(&["--shm-allow", "root"]),
            "\"root\" names no user or group; write uid:NUMBER, gid:NUMBER or any",
        ),
        (STAG, vec!["ping", "shm://a", "--shm-allow", "uid:"], "\"uid:\" names no user or group"),
    ];
    for (program, arguments, part) in cases {
        let output = run(program, &arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(part), "{arguments:?}: {part:?} is not in {complaint:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Descriptors that are too few for the connections that there may be are told of at start, with what fits; a soft limit is
/// raised.
#[test]
fn descriptors_are_counted_at_start() {
    let check = |limits: &str, connections: &str| {
        let flags = "--export mem:/data --memory 1G --listen iwarp://127.0.0.1:0 --check --connections-max";
        let script = format!("{limits}; exec {STAGD} {flags} {connections}");
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let output = check("ulimit -n 1000", "1024");
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("--connections-max 1024: it takes 1408 descriptors"), "{complaint}");
    assert!(complaint.contains("lower --connections-max to 616"), "{complaint}");
    // One descriptor a connection: enough for all of RDMA's or all of TCP's, and for both of fewer.
    let scarce = "enough for 616 connections in all";
    for (limits, connections, warning) in [
        ("ulimit -n 1000", "308", None),
        ("ulimit -n 1000", "616", Some(scarce)),
        ("ulimit -S -n 200", "64", None),
    ] {
        let output = check(limits, connections);
        assert!(output.status.success(), "{limits}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains("warning: descriptors"), warning.is_some(), "{text}");
        assert!(text.contains(warning.unwrap_or_default()), "{text}");
    }
}

/// A flag without effect would mislead its user.
#[test]
fn a_flag_of_another_fabric_is_refused_with_the_fabric_that_uses_it() {
    let place = std::env::temp_dir();
    let place = place.to_str().unwrap();
    let export = ["--export", "mem:/data", "--check"];
    let cases: &[(&str, &[&str], &str)] = &[
        (
            STAG,
            &["--device", "siw0", "ping", "shm://a"],
            "--device: shm does not use it, only verbs does; leave it out",
        ),
        (
            STAG,
            &["cat", "iwarp://a/b", "shm://a/b", "--exposure", "window"],
            "--exposure: iwarp and shm do not use it",
        ),
        (
            STAG,
            &["ping", "iwarp://a", "--shm-allow", "any"],
            "--shm-allow: iwarp does not use it, only shm does",
        ),
        (STAG, &["put", place, "iwarp://a/b", "--device", "siw0"], "--device: iwarp does not use it"),
        (STAG, &["cp", "shm://a/b", place, "--crc", "on"], "--crc: shm does not use it, only iwarp does"),
        (STAG, &["cp", place, "verbs://a/b", "--congestion-control", "reno"], "or choose iwarp by the URL"),
        (
            STAG,
            &["cp", place, place, "--device", "siw0"],
            "--device: this command does not use it, only verbs does; leave it out",
        ),
        (
            STAG,
            &["ls", "shm://a/b", "--mountport", "7"],
            "only iwarp and verbs do; leave it out, or choose iwarp or verbs by the URL",
        ),
        (STAG, &["perf", "null", "--device", "siw0"], "--device: shm does not use it"),
        (
            STAG,
            &["perf", "null", "--fabric", "verbs", "--crc", "off"],
            "or choose iwarp by --fabric or the URL",
        ),
        (STAG, &["perf", "null", "iwarp://a", "--exposure", "window"], "--exposure: iwarp does not use it"),
        (STAG, &["demo", "--device", "siw0"], "--device: shm does not use it"),
        (
            STAG,
            &["doctor", "--device", "siw0"],
            "--device: this command does not use it, only verbs does; leave it out",
        ),
        (STAG, &["fabrics", "--crc", "on"], "--crc: verbs does not use it"),
        (
            STAGD,
            &["--listen", "shm://a", "--device", "siw0"],
            "--device: shm does not use it, only verbs does",
        ),
        (
            STAGD,
            &["--listen", "shm://a", "--listen", "tcp://[::1]:7", "--crc", "off"],
            "--crc: shm and tcp do not use it",
        ),
        (
            STAGD,
            &["--listen", "iwarp://[::1]", "--shared-receives"],
            "--shared-receives: iwarp does not use it",
        ),
        (STAGD, &["--listen", "iwarp://[::1]", "--exposure", "window"], "or choose verbs by --listen"),
        (
            STAGD,
            &["--listen", "shm://a", "--rpcbind"],
            "only iwarp, verbs and tcp do; leave it out, or choose iwarp, verbs or tcp by --listen",
        ),
        (STAGD, &["--listen", "verbs://[::1]", "--congestion-control", "reno"], "only iwarp and tcp do"),
    ];
    for (program, arguments, part) in cases {
        let arguments = if *program == STAGD { [&export, *arguments].concat() } else { arguments.to_vec() };
        let output = run(program, &arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(part), "{arguments:?}: {part:?} is not in {complaint:?}");
    }
}

#[test]
fn a_flag_that_one_of_several_places_uses_is_taken() {
    let listen = ["--export", "mem:/data", "--memory", "64M", "--check", "--listen", "shm://a", "--listen"];
    let output = run(STAGD, &[&listen[..], &["tcp://[::1]:7", "--congestion-control", "reno"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// `.invalid` is in no domain name system (RFC 6761 section 6.4).
#[test]
fn an_unknown_host_comes_with_the_command_that_checks_it() {
    let repair = "`getent hosts absent.invalid` shows whether this machine knows the name";
    let serve = ["--export", "mem:/data", "--memory", "64M", "--listen"];
    for (program, arguments) in [
        (STAG, vec!["ping", "iwarp://absent.invalid"]),
        (STAGD, [&serve[..], &["iwarp://absent.invalid"]].concat()),
        (STAGD, [&serve[..], &["tcp://absent.invalid:7"]].concat()),
        (STAGD, [&serve[..], &["tcp://absent.invalid:7", "--check"]].concat()),
    ] {
        let output = run(program, &arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(repair), "{arguments:?}: {complaint}");
    }
}

#[test]
fn a_bad_configuration_file_is_named_with_the_line_and_the_key() {
    let folder = std::env::temp_dir().join(format!("stag-configuration-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("stagd.toml");
    for (content, part) in [
        ("exports = [\"mem:/data\"]\n", "line 1: there is no key \"exports\"; did you mean \"export\"?"),
        (
            "export = [\"mem:/data\"]\n\nmemroy = \"1G\"\n",
            "line 3: there is no key \"memroy\"; did you mean \"memory\"?",
        ),
        ("credits = 7\ncredits = 8\n", "line 2: duplicate key"),
        ("# first\nfrobnicate = 1\n", "line 2: there is no key \"frobnicate\"; the keys are stagd's options"),
        ("export = [\"mem:/data\"]\n\nmemory = \"3Q\"\n", "line 3: \"3Q\" is not a size"),
        ("credits = \"many\"\n", "line 1: invalid type"),
        ("export = 7\n", "line 1: invalid type: integer `7`, expected a text, or a list of them"),
        ("listen = [\"tcp://x\"]\n", "write tcp://HOST:PORT"),
        ("export = [\n", "line 1: "),
    ] {
        std::fs::write(&path, content).unwrap();
        let output = run(STAGD, &["--config", path.to_str().unwrap()]);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{content}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{content}: {complaint}");
        assert!(complaint.contains("stagd.toml, ") && complaint.contains(part), "{part:?}: {complaint}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn fabrics_says_what_works_and_why_the_others_do_not() {
    let output = run(STAG, &["fabrics", "--json"]);
    assert!(output.status.success());
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let works: Vec<_> = lines.iter().map(|line| (line["fabric"].as_str(), line["works"].as_bool())).collect();
    assert_eq!(works[..2], [(Some("shm"), Some(true)), (Some("iwarp"), Some(true))]);
    // Whether there is a device is the machine's matter.
    assert!(matches!(works[2..], [(Some("verbs"), Some(_))]), "{works:?}");
    assert!(lines.iter().all(|line| !line["detail"].as_str().unwrap().is_empty()));
}

#[test]
fn hugepages_changes_nothing_unless_told_to() {
    let show = || run(STAG, &["hugepages", "show", "--json"]);
    let before = show();
    assert!(before.status.success());
    // A kernel without hugepages, or a container that hides them, has no plan either.
    let plan = run(STAG, &["hugepages", "setup", "--count", "1"]);
    if text(&before.stdout).is_empty() {
        assert_eq!(plan.status.code(), Some(2));
        return;
    }
    let plan = text(&plan.stdout);
    assert!(
        plan.contains("nothing was changed; --apply does it") || plan.contains("nothing to do"),
        "{plan}"
    );
    assert!(run(STAG, &["hugepages", "clear"]).status.success());
    let total = |output: &Output| -> Vec<serde_json::Value> {
        let lines = text(&output.stdout).lines();
        lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["total"].clone()).collect()
    };
    assert_eq!(total(&before), total(&show()));

    let absurd = run(STAG, &["hugepages", "setup", "--size", "4k", "--count", "1"]);
    assert_eq!(absurd.status.code(), Some(2));
    assert!(text(&absurd.stderr).contains("\"4k\" cannot be reserved; use one of: 2m, 1g"));
}

/// Who may map the server's memory is said before anybody does.
#[test]
fn a_server_over_shm_says_whom_it_admits() {
    let served = ["--export", "mem:/data", "--listen", "shm://said", "--memory", "32M", "--check"];
    let said = |more: &[&str]| {
        let output = run(STAGD, &[&served[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let out = text(&output.stdout);
        let line = out.lines().find_map(|line| line.strip_prefix("shm        "));
        line.unwrap_or_else(|| panic!("it is not said: {out}")).to_owned()
    };
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(said(&[]), format!("admits processes of user {own} only; --shm-allow admits others"));
    let more = said(&["--shm-allow", "uid:7", "--shm-allow", "gid:8"]);
    assert!(more.starts_with(&format!("admits processes of user {own} and of uid:7, gid:8: ")), "{more}");
    let file = std::env::temp_dir().join(format!("stagd-shm-allow-{}.toml", std::process::id()));
    std::fs::write(&file, "shm-allow = [\"any\"]\n").unwrap();
    let any = said(&["--config", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert!(any.starts_with("admits every process of this machine: "), "{any}");
}

#[test]
fn help_is_a_word_too() {
    for (asked, option) in [(&["help", "ls"][..], &["ls", "--help"][..]), (&["help"], &["--help"])] {
        let (asked, option) = (run(STAG, asked), run(STAG, option));
        assert!(asked.status.success() && !asked.stdout.is_empty());
        assert_eq!(text(&asked.stdout), text(&option.stdout));
    }
    assert_eq!(run(STAG, &["help", "frob"]).status.code(), Some(2));
    assert_eq!(text(&run(STAGD, &["help"]).stdout), text(&run(STAGD, &["--help"]).stdout));

    let exports = run(STAGD, &["--export", "help"]);
    assert!(exports.status.success(), "{}", text(&exports.stderr));
    let exports = text(&exports.stdout);
    for part in ["client=NET[:ro|:rw]", "root_squash=yes|no", "yes\n", "sync=yes|no", "name=/PATH", "65534"] {
        assert!(exports.contains(part), "{part:?} is not in {exports}");
    }
    assert!(exports.lines().all(|line| line.chars().count() <= 80), "{exports}");
    // It is named where one looks first.
    assert!(text(&run(STAGD, &["--help"]).stdout).contains("help lists"));
}

#[test]
fn a_version_says_which_build_it_is() {
    for (program, name) in [(STAG, "stag"), (STAGD, "stagd")] {
        let output = run(program, &["--version"]);
        let version = text(&output.stdout);
        assert_eq!(version.lines().count(), 1, "{version}");
        assert!(version.starts_with(&format!("{name} {} (commit ", env!("CARGO_PKG_VERSION"))), "{version}");
        for part in [", profile ", ", features ", std::env::consts::ARCH] {
            assert!(version.contains(part), "{part:?} is not in {version}");
        }
    }
    let doctor = run(STAG, &["doctor"]);
    assert_eq!(text(&doctor.stdout).lines().next(), text(&run(STAG, &["--version"]).stdout).lines().next());
}

/// On a terminal of 80 columns no line is longer, and no word is broken. `script` gives a command a terminal.
#[test]
fn lines_fit_a_terminal_of_80_columns() {
    let long =
        "mem:/data,client=192.168.100.0/24:ro,client=192.168.101.0/24:rw,client=10.0.0.0/8:ro,root_squash=no";
    let check = format!("{STAGD} --check --memory 64M --record 64 --listen shm://width --export {long}");
    let perf = format!("{STAG} perf read -n 200 --repeat 1 --warm-up 1ms --poll adaptive --interval 1ms");
    for command in [format!("{STAG} --version"), format!("{STAGD} --version"), check, perf] {
        let line = format!("stty rows 24 cols 80; {command}");
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        let Ok(output) = output else { return stag_testing::skipped("there is no script (util-linux)") };
        // A bar is drawn behind a carriage return each time.
        let shown = text(&output.stdout).replace("\r\n", "\n");
        let lines = shown.lines().filter(|line| !line.contains(['\r', '\x1b']));
        for line in lines.clone() {
            assert!(line.chars().count() <= 80, "{command}: {line:?} of {shown}");
        }
        assert!(lines.count() >= 2, "{command}: {shown}");
        for word in command.split([' ', ',']).filter(|word| word.starts_with("client=")) {
            assert!(shown.contains(word), "{word} is broken: {shown}");
        }
    }
}

/// Programs read what goes wrong as they read all else.
#[test]
fn complaints_are_objects_for_programs() {
    for (program, arguments, status, part) in [
        (STAG, &["--json", "ls"][..], 2, "<URL> is missing"),
        (STAG, &["ls", "--json", "shm://nobody-listens-there"], 1, "no server listens there"),
        (STAG, &["--json", "ping", "shm://a", "--crc", "on"], 2, "--crc: shm does not use it"),
        (STAGD, &["--json"], 2, "nothing to serve"),
        (STAGD, &["--json", "--frob"], 2, "unknown option --frob"),
    ] {
        let output = run(program, arguments);
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!((output.status.code(), error["event"].as_str()), (Some(status), Some("error")), "{error}");
        assert!(error["error"].as_str().unwrap().contains(part), "{error}");
    }
}

/// One name for one thing, and the one that `stag` had before.
#[test]
fn congestion_control_has_one_name_and_an_old_one() {
    for flag in ["--congestion-control", "--congestion"] {
        let output = run(STAG, &["ping", "shm://a", flag, "reno"]);
        assert!(text(&output.stderr).contains("--congestion-control: shm does not use it"), "{flag}");
    }
    assert!(text(&run(STAGD, &["--help"]).stdout).contains("Calls of a connection at once"));
}

/// What a list has one item of may be written without the brackets.
#[test]
fn one_export_in_a_configuration_file_needs_no_list() {
    let folder = std::env::temp_dir().join(format!("stag-one-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("stagd.toml");
    std::fs::write(&path, "export = \"mem:/one\"\nlisten = \"shm://one\"\nmemory = \"32M\"\n").unwrap();
    let output = run(STAGD, &["--json", "--check", "--config", path.to_str().unwrap()]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(checked["exports"], serde_json::json!(["mem:/one"]));
}

/// `--check` looks whether it could listen there, and by whom the place is taken; the server says so when it starts.
#[test]
fn a_taken_place_is_named_with_who_has_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let by = format!("PID {}", std::process::id());
    for scheme in ["tcp", "iwarp"] {
        let url = format!("{scheme}://{address}");
        let arguments = ["--export", "mem:/data", "--memory", "32M", "--listen", &url];
        let checked = run(STAGD, &[&arguments[..], &["--check"]].concat());
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        let warning = format!("warning: {url} is in use (");
        let checked = text(&checked.stdout);
        let line =
            checked.lines().find(|line| line.starts_with(&warning)).unwrap_or_else(|| panic!("{checked}"));
        assert!(line.contains(&by), "{line}");
        let started = run(STAGD, &arguments);
        let complaint = text(&started.stderr);
        assert_eq!(started.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains(&by) && complaint.contains(&url), "{complaint}");
    }
    drop(listener);
    // A place that was given back may be somebody's again, or still: a process that another test starts right now has its own copy
    // of every descriptor until it is another program.
    let is_free = (0..20).any(|_| {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("tcp://{address}");
        let arguments = ["--export", "mem:/data", "--memory", "32M", "--check", "--listen", &url];
        !text(&run(STAGD, &arguments).stdout).contains("in use")
    });
    assert!(is_free, "each of twenty places that were given back is in use");
}

/// The options of a help text that take a value, one name each.
fn options_with_values(help: &str) -> Vec<String> {
    let words = help.lines().filter_map(|line| {
        let at = line.find("--")?;
        let mut words = line[at..].split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        (value.starts_with('<') && line.trim_start().starts_with('-')).then(|| name.to_owned())
    });
    words.collect()
}

/// Every option with every kind of nonsense: it is taken, or refused with its name, what was found, and in words
/// that are not a library's.
#[test]
fn each_option_refuses_nonsense_in_words() {
    let nonsense = [
        "",
        "-1",
        "abc",
        "99999999999999999999",
        "1.5",
        "0x10",
        "\u{1f600}",
        " ",
        "xx,yy",
        "/proc/nope",
        "=",
        "1e9",
    ];
    let served = ["--check", "--export", "mem:/data", "--memory", "32M", "--listen", "shm://nonsense"];
    let mut cases: Vec<(&str, Vec<&str>)> = vec![(STAGD, served.to_vec())];
    // None of these gets as far as a Call.
    for command in ["ping", "perf", "ls", "put", "hugepages setup", "doctor", "dump", "demo"] {
        let arguments: Vec<&str> = match command {
            "perf" => vec!["perf", "null", "shm://nonsense"],
            "put" => vec!["put", "/proc/nope", "shm://nonsense/a"],
            "hugepages setup" => vec!["hugepages", "setup", "--count", "0"],
            "doctor" => vec!["doctor"],
            "dump" => vec!["dump", "/proc/nope"],
            "demo" => vec!["demo", "--path", "/proc/nope"],
            "ping" => vec!["ping", "shm://nonsense"],
            command => vec![command, "shm://nonsense"],
        };
        cases.push((STAG, arguments));
    }
    let mut refused = 0;
    for (program, arguments) in cases {
        let commands: Vec<&str> =
            arguments.iter().copied().take_while(|word| !word.starts_with('-')).collect();
        let commands = match program {
            STAGD => &[][..],
            _ if commands[0] == "hugepages" => &commands[..2],
            _ => &commands[..1],
        };
        let help = run(program, &[commands, &["--help"]].concat());
        for option in options_with_values(text(&help.stdout)) {
            for value in nonsense {
                let mut given = arguments.clone();
                // Instead of what it has already.
                if let Some(at) = given.iter().position(|word| *word == option) {
                    given.drain(at..at + 2);
                }
                given.extend([option.as_str(), value]);
                let output = run(program, &given);
                let complaint = text(&output.stderr);
                assert!(output.status.code().is_some(), "{given:?}: {}", output.status);
                assert!(complaint.lines().count() <= 1, "{given:?}: {complaint}");
                for foreign in ["invalid digit", "cannot parse", "panicked", "number too", "(os error 22)"] {
                    assert!(!complaint.contains(foreign), "{given:?}: {complaint}");
                }
                if output.status.code() == Some(2) {
                    refused += 1;
                    let name = option.trim_start_matches('-');
                    assert!(complaint.contains(name), "{given:?} names no {option}: {complaint}");
                    let is_misplaced = complaint.contains("not use it");
                    // Of a list, the item that is wrong.
                    let names_value =
                        value.trim().is_empty() || value.split(',').any(|item| complaint.contains(item));
                    assert!(is_misplaced || names_value, "{given:?}: {complaint}");
                }
            }
        }
    }
    assert!(refused > 100, "only {refused} of these were refused");
}
