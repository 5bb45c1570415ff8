//! The `stagd` server.

fn main() -> std::process::ExitCode {
    stag_server::version::set(stag_apps::version::VERSION);
    stag_server::stagd::main()
}
