//! File handles: 32 octets that name an object and that nobody can make up.
//!
//! ```text
//!  0        8        16           24          32
//!  | fsid   | fileid | generation | keyed tag |
//! ```
//!
//! The tag is a keyed hash of the rest. A handle of another length is [`Status::BadHandle`]. One whose tag is wrong is
//! [`Status::Stale`]: as far as anybody can know, an earlier run sealed it, with a key that is gone. (Clients know what
//! to do about a stale handle; a bad one is an unknown error to their users.) One whose object is gone is the store's
//! [`Status::Stale`]. For handles to survive a restart the key has to: [`HandleKey::from_secret`].

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use stag_wire::nfs3::Status;

use crate::store::ObjectId;

/// Length of our handles in bytes.
pub const HANDLE_LEN: usize = 32;

/// Octets of the secret that keys are made of.
pub const SECRET_LEN: usize = 16;

/// Makes and checks handles.
#[derive(Clone)]
pub struct HandleKey {
    secret: [u64; 2],
}

impl HandleKey {
    /// A new key, of the operating system's randomness: handles are good for as long as this process.
    #[must_use]
    pub fn new() -> HandleKey {
        // std's keyed hash is made so that its outputs tell nothing about its random key.
        let random = RandomState::new();
        HandleKey { secret: [random.hash_one(0), random.hash_one(1)] }
    }

    /// The key of a secret, which nobody else may know.
    #[must_use]
    pub fn from_secret(secret: [u8; SECRET_LEN]) -> HandleKey {
        let mut words = [0; 2];
        for (word, octets) in words.iter_mut().zip(secret.as_chunks().0) {
            *word = u64::from_le_bytes(*octets);
        }
        HandleKey { secret: words }
    }

    fn tag(&self, fsid: u64, object: ObjectId) -> u64 {
        siphash(self.secret, &[fsid, object.fileid, object.generation])
    }

    /// The handle of an object in the file system `fsid`.
    #[must_use]
    pub fn seal(&self, fsid: u64, object: ObjectId) -> [u8; HANDLE_LEN] {
        let words = [fsid, object.fileid, object.generation, self.tag(fsid, object)];
        let mut handle = [0; HANDLE_LEN];
        for (place, word) in handle.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        handle
    }

    /// The file system and object of a handle that [`HandleKey::seal`] made with this key.
    ///
    /// # Errors
    ///
    /// [`Status::BadHandle`] for what is not [`HANDLE_LEN`] octets long, [`Status::Stale`] for what another key sealed.
    pub fn open(&self, handle: &[u8]) -> Result<(u64, ObjectId), Status> {
        let handle: &[u8; HANDLE_LEN] = handle.try_into().map_err(|_| Status::BadHandle)?;
        let mut words = handle.as_chunks().0.iter().map(|octets| u64::from_be_bytes(*octets));
        let mut word = || words.next().unwrap_or_default();
        let (fsid, object) = (word(), ObjectId { fileid: word(), generation: word() });
        if word() != self.tag(fsid, object) {
            return Err(Status::Stale);
        }
        Ok((fsid, object))
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey")
    }
}

impl Default for HandleKey {
    fn default() -> HandleKey {
        HandleKey::new()
    }
}

/// SipHash-2-4 of whole words, as octets in little-endian order. (std's has no key of ours, and does not promise to
/// stay the same.)
fn siphash(key: [u64; 2], words: &[u64]) -> u64 {
    fn round(v: &mut [u64; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The last word has the length in its top octet, and here nothing else.
    let last = (words.len() as u64 * 8) << 56;
    for word in words.iter().copied().chain([last]) {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of the reference implementation's vectors whose lengths are whole words: key 00 01 … 0f, input
    /// 00 01 02 ….
    #[test]
    fn siphash_is_the_published_one() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let word = |index: u64| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * index;
        assert_eq!(siphash(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash(key, &[word(0)]), 0x93f5_f579_9a93_2462);
        assert_eq!(siphash(key, &[word(0), word(1)]), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn a_secret_makes_the_same_key_again() {
        let object = ObjectId { fileid: 3, generation: 9 };
        let handle = HandleKey::from_secret([7; 16]).seal(1, object);
        assert_eq!(HandleKey::from_secret([7; 16]).open(&handle), Ok((1, object)));
        assert_eq!(HandleKey::from_secret([8; 16]).open(&handle), Err(Status::Stale));
        assert_eq!(format!("{:?}", HandleKey::from_secret([7; 16])), "HandleKey");
    }

    #[test]
    fn only_sealed_handles_open() {
        let key = HandleKey::new();
        let object = ObjectId { fileid: 3, generation: 9 };
        let handle = key.seal(7, object);
        assert_eq!(key.open(&handle), Ok((7, object)));
        for index in 0..HANDLE_LEN {
            for bit in 0..8 {
                let mut forged = handle;
                forged[index] ^= 1 << bit;
                assert_eq!(key.open(&forged), Err(Status::Stale), "octet {index}, bit {bit}");
            }
        }
        for len in [0, 8, 31, 33, 64] {
            assert_eq!(key.open(&[0; 64][..len]), Err(Status::BadHandle), "{len} octets");
        }
        assert_eq!(HandleKey::new().open(&handle), Err(Status::Stale), "another server's");
    }
}
