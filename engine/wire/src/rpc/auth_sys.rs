//! The body of AUTH_SYS credentials (RFC 5531, appendix A).

use super::words;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError, padded};

/// The body of an AUTH_SYS credential: a user's numbers, unproved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// Arbitrary.
    pub stamp: u32,
    /// Name of the caller's machine, at most [`AuthSys::MACHINE_NAME_LEN_MAX`] octets.
    pub machine_name: &'a [u8],
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The user's further groups.
    pub gids: Gids<'a>,
}

impl<'a> AuthSys<'a> {
    /// Octets that the machine name may have.
    pub const MACHINE_NAME_LEN_MAX: u32 = 255;
    /// Entries that the list of further groups may have.
    pub const GIDS_MAX: u32 = 16;
    /// Octets that the body can have at most: below [`AUTH_BODY_LEN_MAX`](super::AUTH_BODY_LEN_MAX).
    pub const BODY_LEN_MAX: usize = 4 + (4 + 256) + 4 + 4 + (4 + 4 * 16);

    /// Reads the body of a credential whose flavor is AUTH_SYS. A failure is answered with
    /// [`AuthStat::BADCRED`](super::AuthStat::BADCRED).
    #[inline]
    pub fn parse(body: &'a [u8]) -> Result<AuthSys<'a>, XdrError> {
        match AuthSys::parse_usual(body) {
            Some(auth) => Ok(auth),
            None => AuthSys::parse_in_order(body),
        }
    }

    /// Reads a body in which nothing is wrong, with few looks at its length. `None`: [`AuthSys::parse`] says what is.
    #[inline(always)]
    #[must_use]
    pub fn parse_usual(body: &'a [u8]) -> Option<AuthSys<'a>> {
        let (head, rest) = body.split_first_chunk::<8>()?;
        let [stamp, name_len] = words(head);
        if name_len > Self::MACHINE_NAME_LEN_MAX {
            return None;
        }
        let (name, rest) = rest.split_at_checked(padded(name_len) as usize)?;
        let (ids, gids) = rest.split_first_chunk::<12>()?;
        let [uid, gid, count] = words(ids);
        if count > Self::GIDS_MAX || gids.len() != 4 * count as usize {
            return None;
        }
        let machine_name = name.get(..name_len as usize)?;
        Some(AuthSys { stamp, machine_name, uid, gid, gids: Gids(GidsIn::Wire(gids.as_chunks().0)) })
    }

    #[inline(never)]
    fn parse_in_order(body: &'a [u8]) -> Result<AuthSys<'a>, XdrError> {
        let mut reader = Reader::new(body);
        let auth = AuthSys {
            stamp: reader.u32()?,
            machine_name: reader.string(Self::MACHINE_NAME_LEN_MAX)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            gids: reader.value()?,
        };
        reader.finish()?;
        Ok(auth)
    }
}

impl Encode for AuthSys<'_> {
    /// Writes the body, without flavor and length. [`Overflow`] also if the machine name is too long.
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        if self.machine_name.len() > Self::MACHINE_NAME_LEN_MAX as usize {
            return Err(Overflow);
        }
        writer.u32(self.stamp)?;
        writer.string(self.machine_name)?;
        writer.u32(self.uid)?;
        writer.u32(self.gid)?;
        writer.value(&self.gids)
    }
}

/// At most [`AuthSys::GIDS_MAX`] group numbers: on the wire, or the caller's own.
#[derive(Clone, Copy, Debug)]
pub struct Gids<'a>(GidsIn<'a>);

#[derive(Clone, Copy, Debug)]
enum GidsIn<'a> {
    Wire(&'a [[u8; 4]]),
    Host(&'a [u32]),
}

impl<'a> Gids<'a> {
    /// No groups.
    pub const NONE: Gids<'static> = Gids(GidsIn::Host(&[]));

    /// Takes group numbers to send. `None` if there are more than [`AuthSys::GIDS_MAX`].
    #[inline]
    #[must_use]
    pub const fn new(gids: &'a [u32]) -> Option<Gids<'a>> {
        if gids.len() > AuthSys::GIDS_MAX as usize { None } else { Some(Gids(GidsIn::Host(gids))) }
    }

    /// Returns how many there are.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            GidsIn::Wire(gids) => gids.len(),
            GidsIn::Host(gids) => gids.len(),
        }
    }

    /// Tells whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the numbers to the start of `out`, and returns how many they are.
    #[inline]
    pub fn copy_to(&self, out: &mut [u32; AuthSys::GIDS_MAX as usize]) -> usize {
        match self.0 {
            GidsIn::Wire(gids) => {
                for (place, gid) in out.iter_mut().zip(gids) {
                    *place = u32::from_be_bytes(*gid);
                }
            }
            GidsIn::Host(gids) => out[..gids.len()].copy_from_slice(gids),
        }
        self.len()
    }

    /// Iterates over the numbers.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (wire, host): (&[[u8; 4]], &[u32]) = match self.0 {
            GidsIn::Wire(gids) => (gids, &[]),
            GidsIn::Host(gids) => (&[], gids),
        };
        wire.iter().map(|gid| u32::from_be_bytes(*gid)).chain(host.iter().copied())
    }
}

impl PartialEq for Gids<'_> {
    fn eq(&self, other: &Gids<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Gids<'_> {}

impl<'a> Decode<'a> for Gids<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Gids<'a>, XdrError> {
        let count = reader.count(AuthSys::GIDS_MAX, 4)?;
        let (gids, _) = reader.opaque_fixed(4 * count as usize)?.as_chunks();
        Ok(Gids(GidsIn::Wire(gids)))
    }
}

impl Encode for Gids<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        // 16 at most, in both forms: checked when this was made.
        writer.u32(self.len() as u32)?;
        self.iter().try_for_each(|gid| writer.u32(gid))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        /// A body that is read as a whole is what it is in order, and any other is none.
        #[test]
        fn a_credential_is_read_alike(words in vec(0u32..24, 0..30), cut in 0usize..121) {
            let octets = words.iter().flat_map(|word| word.to_be_bytes()).take(cut);
            let octets: std::vec::Vec<u8> = octets.collect();
            match AuthSys::parse_usual(&octets) {
                Some(auth) => prop_assert_eq!(Ok(auth), AuthSys::parse_in_order(&octets)),
                None => prop_assert!(AuthSys::parse_in_order(&octets).is_err()),
            }
        }
    }
}
