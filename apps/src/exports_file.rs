//! The file of knfsd, `/etc/exports` (exports(5)), in words of `stagd`. Nothing is permitted that the file does not permit: what
//! has no counterpart is left out, and named.

use std::net::IpAddr;

/// An export of `stagd`, and what of its lines has no counterpart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// The exports, as behind `--export`.
    pub exports: Vec<String>,
    /// What is lost: the line's number, the path, and why.
    pub losses: Vec<Loss>,
}

/// Something that has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The number of the line, from 1.
    pub line: usize,
    /// The directory.
    pub path: String,
    /// What it is, and what that means.
    pub what: String,
}

/// Translates a whole file.
#[must_use]
pub fn translate(text: &str) -> Translation {
    let mut translation = Translation::default();
    for (line, text) in logical_lines(text) {
        let mut words = words(&text).into_iter();
        let Some(path) = words.next() else { continue };
        let mut losses = Vec::new();
        let export = export(&path, words, &mut losses);
        let of_line = |what| Loss { line, path: path.clone(), what };
        translation.losses.extend(losses.into_iter().map(of_line));
        match export {
            Ok(export) => translation.exports.push(export),
            Err(why) => translation.losses.push(of_line(format!("not exported: {why}"))),
        }
    }
    translation
}

/// Lines without comments, joined where one ends with a backslash, each with its number.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let (line, continues) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| is_open) {
            Some((_, open)) => *open += &format!(" {line}"),
            None => lines.push((number, line.to_owned())),
        }
        is_open = continues;
    }
    lines
}

/// The words of a line, with quotes and octal escapes resolved, up to a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted, mut has_word) = (Vec::new(), Vec::new(), false, false);
    let mut rest = line.as_bytes();
    let mut end = |word: &mut Vec<u8>, has_word: &mut bool| {
        if std::mem::take(has_word) {
            words.push(String::from_utf8_lossy(&std::mem::take(word)).into_owned());
        }
    };
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match *first {
            b'"' => (is_quoted, has_word) = (!is_quoted, true),
            b'#' if !is_quoted && !has_word => break,
            octet if octet.is_ascii_whitespace() && !is_quoted => end(&mut word, &mut has_word),
            octet => {
                has_word = true;
                let escaped = after.get(..3).filter(|_| octet == b'\\');
                let escaped = escaped.and_then(|digits| str::from_utf8(digits).ok());
                match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
                    Some(octet) => {
                        word.push(octet);
                        rest = &after[3..];
                    }
                    None => word.push(octet),
                }
            }
        }
    }
    end(&mut word, &mut has_word);
    words
}

/// What knfsd knows of a client of an export, as far as `stagd` has it. Defaults are those of exports(5).
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientOptions {
    read_only: bool,
    sync: bool,
    root_squash: bool,
    all_squash: bool,
    anonymous: [Option<String>; 2],
    /// Why the client cannot be admitted.
    refused: Option<String>,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            read_only: true,
            sync: true,
            root_squash: true,
            all_squash: false,
            anonymous: [None, None],
            refused: None,
        }
    }
}

impl ClientOptions {
    /// Reads options with commas between. What has no counterpart goes to `losses`, each once.
    fn read(&mut self, options: &str, losses: &mut Vec<String>) {
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "sync" => self.sync = true,
                "async" => self.sync = false,
                "root_squash" => self.root_squash = true,
                "no_root_squash" => self.root_squash = false,
                "all_squash" => self.all_squash = true,
                "no_all_squash" => self.all_squash = false,
                "anonuid" => self.anonymous[0] = Some(value.to_owned()),
                "anongid" => self.anonymous[1] = Some(value.to_owned()),
                "sec" if value.split(':').any(|flavor| flavor == "sys") => {}
                "sec" => self.refused = Some(format!("{option}: stagd has AUTH_SYS only")),
                "xprtsec" if value.split(':').any(|policy| policy == "none") => {}
                "xprtsec" => self.refused = Some(format!("{option}: stagd does not encrypt")),
                "refer" | "replicas" => {
                    self.refused = Some(format!("{option}: stagd refers clients nowhere"))
                }
                // Nothing is lost: it is the default here, or it concerns knfsd's insides.
                "insecure" | "no_subtree_check" | "wdelay" | "no_wdelay" | "hide" | "no_pnfs"
                | "auth_nlm" | "secure_locks" => {}
                _ => {
                    let loss = format!("{option}: {}", meaning(name, value));
                    if !losses.contains(&loss) {
                        losses.push(loss);
                    }
                }
            }
        }
    }
}

/// What it means that an option is left out.
fn meaning(name: &str, value: &str) -> &'static str {
    match (name, value) {
        ("fsid", "0" | "root") => {
            "stagd has no root export; over version 4 clients mount HOST:/PATH, not paths below the root export"
        }
        ("fsid", _) => "not needed; handles stay good as long as the path and the state directory do",
        ("secure", _) => "add the option secure to this export if all clients use TCP from ports below 1024",
        ("subtree_check", _) => "handles are not checked for their place; export a file system of its own",
        ("crossmnt" | "nohide", _) => {
            "file systems below are not exported with it; give each an export of its own"
        }
        ("mountpoint" | "mp", _) => {
            "stagd does not check that something is mounted there; let its unit require the mount"
        }
        ("no_acl", _) => "access control lists are shown",
        ("insecure_locks" | "no_auth_nlm", _) => "locks need a credential of AUTH_SYS, as all Calls do",
        ("pnfs", _) => "there is no pNFS",
        ("security_label", _) => "there are no security labels",
        _ => "unknown",
    }
}

/// Whether a client has an option.
type IsSet = fn(&ClientOptions) -> bool;

/// One export; `Err` says why there is none.
fn export(
    path: &str,
    words: impl Iterator<Item = String>,
    losses: &mut Vec<String>,
) -> Result<String, String> {
    let mut defaults = ClientOptions::default();
    let mut clients: Vec<(String, ClientOptions)> = Vec::new();
    // Those that have no address here. Another rule may include them, and must not give them more than theirs.
    let mut left_out: Vec<ClientOptions> = Vec::new();
    let mut has_any = false;
    for word in words {
        if let Some(options) = word.strip_prefix('-') {
            defaults.read(options, losses);
            continue;
        }
        has_any = true;
        let (name, options) = match word.split_once('(') {
            Some((name, options)) => (name, options.trim_end_matches(')')),
            None => (word.as_str(), ""),
        };
        let mut own = defaults.clone();
        own.read(options, losses);
        let refused = own.refused.clone();
        match refused.map_or_else(|| network(name), Err) {
            Ok(network) => clients.push((network, own)),
            Err(why) => {
                losses.push(format!("client {name} is left out: {why}"));
                // A client without Kerberos is none of these.
                if !name.starts_with("gss/") {
                    left_out.push(own);
                }
            }
        }
    }
    if !has_any {
        // exports(5): without a client it is exported to all.
        match &defaults.refused {
            None => clients.push(("*".to_owned(), defaults)),
            Some(why) => return Err(why.clone()),
        }
    }
    if clients.is_empty() {
        return Err("no client is left".to_owned());
    }
    let path = plain_path(path)?;
    let is_wide = |network: &str| network == "*" || network.contains('/');
    if !clients.iter().any(|(network, _)| is_wide(network)) {
        left_out.clear();
    }
    if left_out.iter().any(|own| own.refused.is_some()) {
        return Err("a client that is left out must be protected, and a network includes it".to_owned());
    }
    if left_out.iter().any(|own| own.read_only) {
        let wide = clients.iter_mut().filter(|(network, own)| is_wide(network) && !own.read_only);
        for (network, own) in wide {
            own.read_only = true;
            losses.push(format!(
                "client {network} may only read: it may include a left-out client that may not write"
            ));
        }
    }
    let mut text = format!("dir:{path}");
    // These are the export's here: the careful choice holds for all clients.
    let all: Vec<&ClientOptions> = clients.iter().map(|(_, own)| own).chain(&left_out).collect();
    let any = |is: IsSet| all.iter().any(|own| is(own));
    let differs = |is: IsSet| any(is) && !all.iter().all(|own| is(own));
    let switches: [(&str, bool, IsSet); 3] = [
        ("root_squash", true, |own| own.root_squash),
        ("all_squash", false, |own| own.all_squash),
        ("sync", true, |own| own.sync),
    ];
    for (name, default, is) in switches {
        if differs(is) {
            losses.push(format!("{name} differs between clients: here it holds for all of them"));
        }
        if any(is) != default {
            text += &format!(",{name}={}", if any(is) { "yes" } else { "no" });
        }
    }
    for (place, name) in [(0, "anonuid"), (1, "anongid")] {
        let values: Vec<_> = clients.iter().map(|(_, own)| own.anonymous[place].as_deref()).collect();
        if values.iter().any(|value| value != &values[0]) {
            losses.push(format!("{name} differs between clients: here it is the usual one, 65534"));
        } else if let Some(value) = values[0] {
            // knfsd reads negative numbers, which stand for the last ones.
            match value.parse::<u32>() {
                Ok(id) if id < u32::MAX => text += &format!(",{name}={id}"),
                _ => losses.push(format!("{name}={value}: no such user; here it is the usual one, 65534")),
            }
        }
    }
    for (network, own) in &clients {
        text += &format!(",client={network}:{}", if own.read_only { "ro" } else { "rw" });
    }
    Ok(text)
}

/// A path as `stagd` takes it.
fn plain_path(path: &str) -> Result<&str, String> {
    let plain = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let is_plain = plain.starts_with('/')
        && !plain.contains(',')
        && (plain.len() == 1 || plain.split('/').skip(1).all(|name| !matches!(name, "" | "." | "..")));
    if is_plain {
        Ok(plain)
    } else {
        Err("a path begins with /, and has no comma, //, . or .. in it".to_owned())
    }
}

/// A client that is an address, a network or everybody. `Err`: it is not.
fn network(name: &str) -> Result<String, String> {
    if matches!(name, "" | "*" | "<world>") {
        return Ok("*".to_owned());
    }
    if name.starts_with('@') {
        return Err("netgroups are not supported; write addresses".to_owned());
    }
    if name.starts_with("gss/") {
        return Err("stagd has AUTH_SYS only".to_owned());
    }
    let (address, mask) = name.split_once('/').map_or((name, None), |(address, mask)| (address, Some(mask)));
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err("host names are not supported; write addresses".to_owned());
    };
    let Some(mask) = mask else { return Ok(address.to_string()) };
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let bits = match mask.parse::<u32>() {
        Ok(bits) => Some(bits).filter(|bits| *bits <= bits_max),
        Err(_) => mask.parse::<IpAddr>().ok().and_then(|mask| prefix(address, mask)),
    };
    match bits {
        Some(bits) => Ok(format!("{address}/{bits}")),
        None => Err("its mask is no prefix".to_owned()),
    }
}

/// The length of the prefix that a mask stands for, if it is one.
fn prefix(address: IpAddr, mask: IpAddr) -> Option<u32> {
    match (address, mask) {
        (IpAddr::V4(_), IpAddr::V4(mask)) => {
            let mask = u32::from(mask);
            (mask.leading_ones() + mask.trailing_zeros() == 32 || mask == u32::MAX)
                .then(|| mask.leading_ones())
        }
        (IpAddr::V6(_), IpAddr::V6(mask)) => {
            let mask = u128::from(mask);
            (mask.leading_ones() + mask.trailing_zeros() == 128 || mask == u128::MAX)
                .then(|| mask.leading_ones())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> (String, Vec<String>) {
        let Translation { exports, losses } = translate(line);
        (exports.join(" "), losses.into_iter().map(|loss| loss.what).collect())
    }

    /// The example of exports(5), and what Debian's file shows.
    #[test]
    fn the_examples_of_the_manual_are_translated() {
        let file = "\
# sample /etc/exports file
/               master(rw) trusty(rw,no_root_squash)
/projects       proj*.local.domain(rw)
/usr            *.local.domain(ro) @trusted(rw)
/srv/joe        pc001(rw,all_squash,anonuid=150,anongid=100)
/pub            *(ro,insecure,all_squash)
/srv/www        -sync,rw server @trusted @external(ro)
/foo            2001:db8:9:e54::/64(rw) 192.0.2.0/24(rw)
/srv/nfs4/homes  gss/krb5i(rw,sync,no_subtree_check)
/srv/homes       10.0.0.1(rw,sync,no_subtree_check) \\
                 10.0.0.2(ro,sync,no_subtree_check)
";
        let Translation { exports, losses } = translate(file);
        assert_eq!(
            exports,
            [
                "dir:/pub,all_squash=yes,client=*:ro",
                "dir:/foo,client=2001:db8:9:e54::/64:rw,client=192.0.2.0/24:rw",
                "dir:/srv/homes,client=10.0.0.1:rw,client=10.0.0.2:ro",
            ]
        );
        // None of those whose clients have names is open to all.
        for path in ["/", "/projects", "/usr", "/srv/joe", "/srv/www", "/srv/nfs4/homes"] {
            let told = losses.iter().rfind(|loss| loss.path == path).map(|loss| loss.what.as_str());
            assert_eq!(told, Some("not exported: no client is left"), "{path}");
        }
        assert_eq!(losses[0].line, 2);
        assert!(losses[0].what.contains("client master is left out: host names"), "{losses:?}");
    }

    #[test]
    fn options_are_those_of_the_export_and_the_careful_choice_holds() {
        assert_eq!(
            one("/a 10.0.0.0/255.255.0.0(rw,async,no_root_squash)").0,
            "dir:/a,root_squash=no,sync=no,client=10.0.0.0/16:rw"
        );
        let (export, losses) = one("/a 10.0.0.1(rw,no_root_squash,async) *(ro)");
        assert_eq!(export, "dir:/a,client=10.0.0.1:rw,client=*:ro");
        assert_eq!(losses.len(), 2, "{losses:?}");
        assert!(losses[0].contains("root_squash differs between clients"), "{losses:?}");
        let (export, losses) = one("/a 10.0.0.1(anonuid=1) *(anonuid=2,anongid=-2)");
        assert_eq!((&*export, losses.len()), ("dir:/a,client=10.0.0.1:ro,client=*:ro", 2), "{losses:?}");
        // Without a client, and without options: all may read.
        assert_eq!(one("/a").0, "dir:/a,client=*:ro");
        assert_eq!(one("/a (rw)").0, "dir:/a,client=*:rw");
        assert_eq!(one("/a -rw,anonuid=7").0, "dir:/a,anonuid=7,client=*:rw");
    }

    /// knfsd gives a name precedence over a network and `*`.
    #[test]
    fn a_client_that_is_left_out_gets_no_more_than_its_own_rule_gave() {
        let (export, losses) = one("/a host(ro) *(rw)");
        assert_eq!(export, "dir:/a,client=*:ro");
        assert!(losses.iter().any(|loss| loss.starts_with("client * may only read")), "{losses:?}");
        assert_eq!(one("/a host(rw,all_squash) *(rw,no_root_squash)").0, "dir:/a,all_squash=yes,client=*:rw");
        assert_eq!(one("/a host(rw) *(ro)").0, "dir:/a,client=*:ro");
        assert_eq!(one("/a host(ro) 10.0.0.1(rw)").0, "dir:/a,client=10.0.0.1:rw");
        let (export, losses) = one("/a host(rw,sec=krb5) *(rw)");
        assert_eq!(export, "");
        assert!(losses.last().unwrap().contains("must be protected"), "{losses:?}");
        assert_eq!(one("/a gss/krb5(rw) *(ro)").0, "dir:/a,client=*:ro");
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        let (export, losses) = one("/a *(rw,fsid=0,crossmnt,subtree_check,frobnicate)");
        assert_eq!(export, "dir:/a,client=*:rw");
        for part in
            ["fsid=0: stagd has no root export", "crossmnt: file systems below", "subtree_check: handles"]
        {
            assert!(losses.iter().any(|loss| loss.starts_with(part)), "{part}: {losses:?}");
        }
        assert!(losses.contains(&"frobnicate: unknown".to_owned()), "{losses:?}");
        for (line, why) in [
            ("/a *(rw,sec=krb5p)", "no client is left"),
            ("/a -sec=krb5", "AUTH_SYS only"),
            ("/a *(rw,refer=/b@10.0.0.1)", "no client is left"),
            ("/a,b *(ro)", "no comma"),
            ("a *(ro)", "begins with /"),
            ("/a 10.0.0.0/255.0.255.0(ro)", "no client is left"),
        ] {
            let (export, losses) = one(line);
            assert_eq!(export, "", "{line}");
            assert!(losses.last().unwrap().contains(why), "{line}: {losses:?}");
        }
        assert_eq!(one("/a *(rw,sec=krb5:sys)").0, "dir:/a,client=*:rw");
    }

    #[test]
    fn paths_may_be_quoted_and_escaped() {
        assert_eq!(one("\"/srv/my data/\" *(ro)").0, "dir:/srv/my data,client=*:ro");
        assert_eq!(one("/srv/my\\040data *(ro) # all of it").0, "dir:/srv/my data,client=*:ro");
        assert_eq!(one("/srv/a#b *(ro)").0, "dir:/srv/a#b,client=*:ro");
        assert_eq!(translate("\n  # nothing\n\n"), Translation::default());
    }
}
