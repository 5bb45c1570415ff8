//! The `stag` tool.

fn main() -> std::process::ExitCode {
    stag_apps::tool::main()
}
