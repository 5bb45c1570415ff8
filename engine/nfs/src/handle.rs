//! File handles: 32 octets that name an object and that clients cannot forge.
//!
//! ```text
//!  0        8        16           24          32
//!  | fsid   | fileid | generation | keyed tag |
//! ```
//!
//! The tag is SipHash-2-4 of the other three words, each in little-endian order. std's hasher takes no key and may
//! change between releases; a handle must stay good.
//!
//! A handle of another length is [`FsError::BadHandle`]. A wrong tag is [`FsError::Stale`]: most likely an earlier run
//! sealed the handle with a key that is gone, and clients know how to recover from a stale handle. A handle of a removed
//! object is the store's [`FsError::Stale`]. Handles survive a restart if their key does: [`HandleKey::from_secret`].

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use siphasher::sip::SipHasher24;
use stag_vfs::FsError;
use stag_vfs::ObjectId;

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

    /// The key made of `secret`. A reader of the secret can forge handles.
    #[must_use]
    pub fn from_secret(secret: [u8; SECRET_LEN]) -> HandleKey {
        let mut words = [0; 2];
        for (word, octets) in words.iter_mut().zip(secret.as_chunks().0) {
            *word = u64::from_le_bytes(*octets);
        }
        HandleKey { secret: words }
    }

    /// Who makes handles with this key: the same after a restart with the same key. It tells nothing of the key.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        let mut identity = [0; 16];
        for (number, place) in identity.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // Not three words, as handles are.
            let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
            hasher.write(&[b'i', number as u8]);
            *place = hasher.finish().to_be_bytes();
        }
        identity
    }

    fn tag(&self, fsid: u64, object: ObjectId) -> u64 {
        let mut octets = [0; 24];
        for (place, word) in octets.as_chunks_mut().0.iter_mut().zip([fsid, object.fileid, object.generation])
        {
            *place = word.to_le_bytes();
        }
        SipHasher24::new_with_keys(self.secret[0], self.secret[1]).hash(&octets)
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
    /// [`FsError::BadHandle`] for what is not [`HANDLE_LEN`] octets long, [`FsError::Stale`] for what another key sealed.
    pub fn open(&self, handle: &[u8]) -> Result<(u64, ObjectId), FsError> {
        let words = words(handle)?;
        self.check(words)?;
        Ok(named(words))
    }

    /// Fails unless the last of a handle's words is the tag of the others.
    fn check(&self, words: Words) -> Result<(), FsError> {
        let (fsid, object) = named(words);
        if words[3] == self.tag(fsid, object) { Ok(()) } else { Err(FsError::Stale) }
    }
}

/// The file system of a handle, whether or not its tag is right; `None` if it is no handle of ours.
#[inline]
pub(crate) fn fsid(handle: &[u8]) -> Option<u64> {
    words(handle).map(|[fsid, ..]| fsid).ok()
}

/// The number of a handle's object, whether or not its tag is right; `None` if it is no handle of ours.
pub(crate) fn fileid(handle: &[u8]) -> Option<u64> {
    words(handle).map(|[_, fileid, ..]| fileid).ok()
}

/// A handle as four words: file system, number, generation and tag.
type Words = [u64; HANDLE_LEN / 8];

#[inline]
fn words(handle: &[u8]) -> Result<Words, FsError> {
    let handle: &[u8; HANDLE_LEN] = handle.try_into().map_err(|_| FsError::BadHandle)?;
    let mut words = Words::default();
    for (word, octets) in words.iter_mut().zip(handle.as_chunks().0) {
        *word = u64::from_be_bytes(*octets);
    }
    Ok(words)
}

/// The file system and the object that a handle names, whether or not its tag is right.
#[inline]
fn named([fsid, fileid, generation, _]: Words) -> (u64, ObjectId) {
    (fsid, ObjectId { fileid, generation })
}

/// Handles that a [`VerifiedHandles`] remembers: 32 KiB of them.
const VERIFIED_MAX: usize = 1024;

/// A key, and the handles whose tags it verified last: the tag of a repeated handle is not computed again.
///
/// A handle has one place where it can be, and the next with that place evicts it. It is found only if all its octets
/// are the same, so an altered handle never passes for the one that it was made from.
pub(crate) struct VerifiedHandles {
    key: HandleKey,
    // Invariant: every place holds a handle that the key sealed.
    places: Box<[Cell<Words>; VERIFIED_MAX]>,
}

impl VerifiedHandles {
    pub(crate) fn new(key: HandleKey) -> VerifiedHandles {
        // Not zeros: those would be a handle that was never sealed.
        let (fsid, object) = (0, ObjectId { fileid: 0, generation: 0 });
        let sealed = Cell::new([fsid, object.fileid, object.generation, key.tag(fsid, object)]);
        let places = Box::new(std::array::from_fn(|_| sealed.clone()));
        VerifiedHandles { key, places }
    }

    /// As [`HandleKey::seal`].
    pub(crate) fn seal(&self, fsid: u64, object: ObjectId) -> [u8; HANDLE_LEN] {
        self.key.seal(fsid, object)
    }

    /// As [`HandleKey::open`].
    #[inline]
    pub(crate) fn open(&self, handle: &[u8]) -> Result<(u64, ObjectId), FsError> {
        let words = words(handle)?;
        let place = self.place(words);
        let verified = place.get();
        // All of it, wherever it differs: the time taken tells nothing about a tag.
        let differs = words.iter().zip(verified).fold(0, |differs, (word, other)| differs | (word ^ other));
        if differs != 0 {
            self.key.check(words)?;
            place.set(words);
        }
        Ok(named(words))
    }

    /// Where a handle is if it is remembered. The numbers of one file system are small and dense, so they are spread well as
    /// they are; each file system begins elsewhere.
    #[inline]
    fn place(&self, [fsid, fileid, ..]: Words) -> &Cell<Words> {
        let start = fsid.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.places[fileid.wrapping_add(start) as usize % VERIFIED_MAX]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's vector for 24 octets: key 00 01 … 0f, input 00 01 02 …. Handles must stay good
    /// when the crate that computes the tag changes.
    #[test]
    fn the_tag_is_siphash_2_4_of_the_words_in_little_endian_order() {
        let key = HandleKey::from_secret(std::array::from_fn(|index| index as u8));
        let word = |index: u64| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * index;
        let object = ObjectId { fileid: word(1), generation: word(2) };
        assert_eq!(key.tag(word(0), object), 0xb8ad_50c6_f649_af94);
    }

    #[test]
    fn a_secret_makes_the_same_key_again() {
        let object = ObjectId { fileid: 3, generation: 9 };
        let handle = HandleKey::from_secret([7; 16]).seal(1, object);
        assert_eq!(HandleKey::from_secret([7; 16]).open(&handle), Ok((1, object)));
        assert_eq!(HandleKey::from_secret([8; 16]).open(&handle), Err(FsError::Stale));
        let identity = |secret| HandleKey::from_secret([secret; 16]).identity();
        assert_eq!((identity(7), identity(7) == identity(8)), (identity(7), false));
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
                assert_eq!(key.open(&forged), Err(FsError::Stale), "octet {index}, bit {bit}");
            }
        }
        for len in [0, 8, 31, 33, 64] {
            assert_eq!(key.open(&[0; 64][..len]), Err(FsError::BadHandle), "{len} octets");
        }
        assert_eq!(HandleKey::new().open(&handle), Err(FsError::Stale), "another server's");
    }

    fn handles() -> (VerifiedHandles, [u8; HANDLE_LEN], ObjectId) {
        let object = ObjectId { fileid: 3, generation: 9 };
        let handles = VerifiedHandles::new(HandleKey::from_secret([7; 16]));
        let handle = handles.seal(7, object);
        (handles, handle, object)
    }

    /// The tags that were computed and found right: each puts its handle in a place.
    fn remembers(handles: &VerifiedHandles, handle: &[u8; HANDLE_LEN]) -> bool {
        let words = words(handle).unwrap();
        handles.place(words).get() == words
    }

    #[test]
    fn a_handle_is_verified_once_while_it_is_remembered() {
        let (handles, handle, object) = handles();
        assert!(!remembers(&handles, &handle));
        assert_eq!(handles.open(&handle), Ok((7, object)));
        assert!(remembers(&handles, &handle));
        assert_eq!(handles.open(&handle), Ok((7, object)));
    }

    #[test]
    fn an_altered_handle_is_not_the_remembered_one() {
        let (handles, handle, object) = handles();
        for index in 0..HANDLE_LEN {
            for bit in 0..8 {
                handles.open(&handle).unwrap();
                let mut forged = handle;
                forged[index] ^= 1 << bit;
                assert_eq!(handles.open(&forged), Err(FsError::Stale), "octet {index}, bit {bit}");
                assert_eq!(handles.open(&forged), Err(FsError::Stale), "again: octet {index}, bit {bit}");
                assert!(
                    remembers(&handles, &handle),
                    "a forged handle evicts nothing: octet {index}, bit {bit}"
                );
            }
        }
        assert_eq!(handles.open(&handle), Ok((7, object)));
        for len in [0, 8, 31, 33, 64] {
            assert_eq!(handles.open(&[0; 64][..len]), Err(FsError::BadHandle), "{len} octets");
        }
    }

    #[test]
    fn an_empty_place_holds_no_handle_that_nobody_sealed() {
        let (handles, ..) = handles();
        assert_eq!(handles.open(&[0; HANDLE_LEN]), Err(FsError::Stale));
        let none = ObjectId { fileid: 0, generation: 0 };
        assert_eq!(handles.open(&handles.seal(0, none)), Ok((0, none)));
    }

    #[test]
    fn another_handle_of_the_same_place_evicts() {
        let (handles, handle, object) = handles();
        let other = ObjectId { fileid: object.fileid + VERIFIED_MAX as u64, ..object };
        let evicting = handles.seal(7, other);
        assert_eq!(handles.open(&handle), Ok((7, object)));
        assert_eq!(handles.open(&evicting), Ok((7, other)));
        assert!(!remembers(&handles, &handle) && remembers(&handles, &evicting));
        assert_eq!(handles.open(&handle), Ok((7, object)));
        // The same object of another file system is another handle.
        assert_eq!(handles.open(&handles.seal(8, object)), Ok((8, object)));
    }

    #[test]
    fn what_another_key_verified_is_not_known() {
        let (handles, handle, _) = handles();
        handles.open(&handle).unwrap();
        let other = VerifiedHandles::new(HandleKey::from_secret([8; 16]));
        assert_eq!(other.open(&handle), Err(FsError::Stale));
    }
}
