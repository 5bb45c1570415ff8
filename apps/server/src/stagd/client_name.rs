//! How a client is called.

use stag_fabric::Peer;

/// How a client is called: by its address, without the port; or by its user.
pub(super) fn client_name(peer: Option<&Peer>) -> String {
    match peer {
        Some(Peer::Address(address)) => address.ip().to_canonical().to_string(),
        Some(Peer::Process { uid, .. }) => format!("uid {uid}"),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_called_by_its_address_or_its_user() {
        let at = |text: &str| client_name(Some(&Peer::Address(text.parse().unwrap())));
        assert_eq!(at("10.0.0.7:900"), "10.0.0.7");
        assert_eq!(at("[::ffff:10.0.0.7]:900"), "10.0.0.7");
        assert_eq!(client_name(Some(&Peer::Process { pid: 1, uid: 1000, gid: 1000 })), "uid 1000");
    }
}
