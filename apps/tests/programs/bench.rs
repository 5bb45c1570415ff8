//! `stag bench`: scenarios taken, compared, drawn; and other programs beside it. Never how fast they are.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::common::{Folder, STAG, stag, stag_fails, stag_ok};
use crate::perf::alone;

/// A scenario of two short figures, one of them of a server.
const SCENARIO: &str = "\
about = 'Short ones.'\n\
[server]\n\
export = 'dir:{directory},name=/data,root_squash=no'\n\
path = '/data'\n\
directory = '/dev/shm'\n\
memory = '64M'\n\
[[figure]]\n\
name = 'echoes by depth'\n\
perf = 'echo -n 100 -q 2 --curve --warm-up 1ms --poll adaptive'\n\
[[figure]]\n\
name = 'names'\n\
perf = 'getattr -n 100 --warm-up 1ms --poll adaptive'\n\
require = 'rate>0'\n\
server = true\n";

/// Runs `stag`, which must refuse its arguments: status 2 and one line, which is returned.
fn refused(arguments: &[&str]) -> String {
    let output = stag(arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{arguments:?}: {complaint}");
    complaint
}

fn path_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn scenario(folder: &Folder, text: &str) -> PathBuf {
    let path = folder.join("short.toml");
    fs::write(&path, text).unwrap();
    path
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The scenarios of this repository.
fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_scenarios_of_the_repository_are_valid() {
    let files = scenarios();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        // No figure has this name, which is found out when the scenario was read.
        let complaint = refused(&["bench", "run", path_of(&file), "--only", "no such figure"]);
        assert!(complaint.contains("no figure is of that name"), "{}: {complaint}", file.display());
        // Their arguments are those of `stag perf`: it refuses the core, and nothing before.
        for line in fs::read_to_string(&file).unwrap().lines() {
            let Some(perf) = line.strip_prefix("perf = ") else { continue };
            let words = perf.trim_matches('"').split(' ');
            let arguments: Vec<&str> =
                ["perf"].into_iter().chain(words).chain(["--cores", "5000,5001"]).collect();
            let complaint = refused(&arguments);
            assert!(complaint.contains("this process may use cores"), "{line}: {complaint}");
        }
    }
}

#[test]
fn a_scenario_is_taken_compared_and_drawn() {
    let _turn = alone();
    let folder = Folder::new("bench");
    let scenario = scenario(&folder, SCENARIO);
    let (old, page) = (folder.join("old.json"), folder.join("page.html"));
    let text = stag_ok(&["bench", "run", path_of(&scenario), "--repeat", "3", "-o", path_of(&old)]);
    assert!(text.contains("echoes by depth, depth 2") && text.contains("rate>0: "), "{text}");
    let results = read(&old);
    assert_eq!(results["schema"], 1);
    assert!(results["environment"]["commit"].is_string(), "{results}");
    let figures = results["figures"].as_array().unwrap();
    let points: Vec<_> = figures.iter().map(|figure| figure["points"].as_array().unwrap().len()).collect();
    assert_eq!(points, [2, 1], "{results}");
    assert!(figures[1]["points"][0]["url"].as_str().unwrap().ends_with("/data"), "{results}");
    let left = fs::read_dir("/dev/shm").unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name().into_string().unwrap();
        name.starts_with("stag-bench-") && !Path::new("/proc").join(&name[11..]).exists()
    });
    assert_eq!(left.count(), 0, "the folder of the server is gone");

    // Against itself nothing is better or worse; against one twice as slow it is.
    stag_ok(&["bench", "compare", path_of(&old), path_of(&old)]);
    let (quiet, slow) = (folder.join("quiet.json"), folder.join("slow.json"));
    for (path, factor) in [(&quiet, 1.0), (&slow, 0.01)] {
        let mut changed = results.clone();
        for figure in changed["figures"].as_array_mut().unwrap() {
            for point in figure["points"].as_array_mut().unwrap() {
                point["disturbed"] = false.into();
                // However far apart the rounds of this machine were.
                let rate = &mut point["calls_per_second"];
                let median = rate["median"].as_f64().unwrap() * factor;
                for (number, part) in [("median", 1.0), ("min", 0.9), ("max", 1.1)] {
                    rate[number] = json!(median * part);
                }
            }
        }
        fs::write(path, changed.to_string()).unwrap();
    }
    let output = stag(&["bench", "compare", path_of(&quiet), path_of(&slow)]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WORSE") && text.contains("3 worse, 0 better"), "{text}");
    let text = stag_ok(&["bench", "compare", path_of(&slow), path_of(&quiet)]);
    assert!(text.contains("0 worse, 3 better"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }

    stag_ok(&["bench", "report", path_of(&quiet), path_of(&slow), "-o", path_of(&page)]);
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.contains("echoes by depth"));
}

#[test]
fn what_cannot_be_taken_or_read_is_said() {
    let _turn = alone();
    let folder = Folder::new("bench");
    let bad = scenario(&folder, "about = 'x'\n[[figure]]\nname = 'gone'\nperf = 'null shm://absent -n 5'\n");
    let output = folder.join("out.json");
    let complaint = stag_fails(&["bench", "run", path_of(&bad), "-o", path_of(&output)]);
    assert!(complaint.contains("1 of 1 figures could not be taken"), "{complaint}");
    let error = read(&output)["figures"][0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("absent"), "{error}");
    let no_results = folder.join("no.json");
    fs::write(&no_results, "{}").unwrap();
    let empty = folder.join("empty");
    fs::create_dir(&empty).unwrap();
    for (arguments, part) in [
        (vec!["bench", "run", "/no/such.toml"], "/no/such.toml: No such file"),
        (vec!["bench", "compare", "/no/such.json", path_of(&no_results)], "/no/such.json: No such file"),
        (vec!["bench", "report", path_of(&no_results)], "these are no results of stag bench run"),
        (vec!["bench", "report", path_of(&empty)], "no *.json is in it"),
        (vec!["bench", "peers", "--cores", "1"], "--cores: name two"),
    ] {
        let complaint = refused(&arguments);
        assert!(complaint.contains(part), "{arguments:?}: {complaint}");
    }
}

/// A program of this name in the folder, which prints what the real one prints. Another process writes it: a process that another
/// test starts meanwhile would have a copy of our descriptor, and a file that is open for writing cannot be run.
fn program(folder: &Folder, name: &str, script: &str) {
    let write = "cat >\"$0\" && chmod +x \"$0\"";
    let mut shell =
        Command::new("sh").args(["-c", write]).arg(folder.join(name)).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// `stag bench peers` where these programs are on the PATH.
fn peers(folder: &Folder, output: &Path) -> Output {
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", folder.0.display());
    Command::new(STAG)
        .args(["bench", "peers", "-t", "200ms", "-o", path_of(output)])
        .env("PATH", path)
        .output()
        .unwrap()
}

/// The others are played by programs that listen at the port and print what the real ones do. A real one that is installed may run
/// as well.
#[test]
fn others_are_measured_on_the_same_cores_and_what_is_absent_is_named() {
    let _turn = alone();
    if std::thread::available_parallelism().map_or(1, Into::into) < 2 {
        stag_testing::skipped("two cores are wanted");
        return;
    }
    let folder = Folder::new("peers");
    // Servers listen at the port that follows -p or -B until they are killed.
    let listen = "exec python3 -c 'import socket,sys,time\ns=socket.socket()\ns.setsockopt(1,2,1)\n\
                  s.bind((\"127.0.0.1\",int(sys.argv[1])))\ns.listen()\ntime.sleep(60)' \"$port\"";
    let ports = "port=0; for word in \"$@\"; do case $last in -p|-B) case $word in *.*) ;; [0-9]*) [ $port = 0 ] && port=$word;; esac;; \
                 esac; last=$word; done";
    if Command::new("python3").arg("-c").arg("pass").status().map_or(true, |status| !status.success()) {
        stag_testing::skipped("python3 is wanted");
        return;
    }
    program(
        &folder,
        "ucx_perftest",
        &format!(
            "{ports}\ncase \" $* \" in *' 127.0.0.1 '*) echo '1000 0.200 0.250 0.250 240.0 250.0 4000000 \
             3900000';; *) {listen};; esac"
        ),
    );
    program(
        &folder,
        "iperf3",
        &format!(
            "{ports}\ncase \" $* \" in *' -s '*) {listen};; *) echo '{{\"end\": {{\"sum_received\": \
             {{\"bits_per_second\": 16e9}}}}}}';; esac"
        ),
    );
    let output = folder.join("peers.json");
    let ran = peers(&folder, &output);
    let (text, complaint) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    let results = read(&output);
    let rows = results["peers"].as_array().unwrap();
    let row = |who: &str| {
        let found = rows.iter().find(|row| row["who"] == who);
        found.unwrap_or_else(|| panic!("{who} is not in {text}{complaint}"))
    };
    for own in ["stag NULL", "stag READ, depth 4", "stag NULL, iWARP", "stagd, depth 1", "stagd, depth 32"] {
        assert_eq!(row(own)["error"], Value::Null, "{own}: {text}");
        assert!(row(own)["per_second"].as_f64().unwrap() > 0.0, "{own}: {text}");
    }
    // Half round trips are doubled; units are octets.
    assert_eq!(row("UCX tag_lat, shm")["round_trip_ns"].as_f64(), Some(400.0), "{text}");
    assert_eq!(row("UCX tag_bw, tcp")["bytes_per_second"].as_f64(), Some(250.0 * 1_048_576.0), "{text}");
    assert_eq!(row("iperf3")["bytes_per_second"].as_f64(), Some(2e9), "{text}");
    assert!(text.contains("What differs from stag's rows"), "{text}");
    for (name, package) in [("fi_pingpong", "libfabric-bin"), ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-mem")]
    {
        let is_here = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|place| Path::new(place).join(name).exists());
        let said = format!("not installed: {name} (Debian: apt install {package})");
        assert_eq!(text.contains(&said), !is_here, "{text}");
    }
    for line in text.lines().filter(|line| !line.contains("FAILED")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let page = folder.join("page.html");
    stag_ok(&["bench", "report", path_of(&output), "-o", path_of(&page)]);
    assert!(fs::read_to_string(&page).unwrap().contains("Beside other programs"));
}

/// A real browser draws the page: as large as it is wide, and not of one colour.
#[test]
fn a_browser_draws_the_page() {
    let _turn = alone();
    let browsers = ["chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr"];
    let is_here = |name: &&&str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|place| place.join(name).is_file())
    };
    let Some(browser) = browsers.iter().find(is_here) else {
        stag_testing::skipped("no browser is installed (chromium, firefox)");
        return;
    };
    let folder = Folder::new("browser");
    let scenario = scenario(&folder, SCENARIO);
    let (results, page, picture) = (folder.join("r.json"), folder.join("page.html"), folder.join("page.png"));
    stag_ok(&[
        "bench",
        "run",
        path_of(&scenario),
        "--repeat",
        "1",
        "--only",
        "echoes",
        "-o",
        path_of(&results),
    ]);
    stag_ok(&["bench", "report", path_of(&results), "-o", path_of(&page)]);
    let url = format!("file://{}", page.display());
    let mut command = Command::new(browser);
    if browser.starts_with("firefox") {
        command.args([
            "--headless",
            "--profile",
            path_of(&folder.0),
            "--window-size=1400,2400",
            "--screenshot",
        ]);
        command.arg(&picture);
    } else {
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,2400"]);
        command.arg(format!("--user-data-dir={}", folder.0.display()));
        command.arg(format!("--screenshot={}", picture.display()));
    }
    let output = command.arg(&url).output().unwrap();
    let drawn = fs::read(&picture).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    // Its header has the width; a page of one colour packs into a few thousand octets.
    assert_eq!(&drawn[1..4], b"PNG");
    let width = u32::from_be_bytes([drawn[16], drawn[17], drawn[18], drawn[19]]);
    assert!(width >= 1000 && drawn.len() > 30_000, "{width} pixels, {} octets", drawn.len());
}
