//! The `stagd` server.

fn main() -> std::process::ExitCode {
    stag_apps::stagd::main()
}
