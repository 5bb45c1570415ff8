//! [`CallBuilder`]: the options of one Call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stag_rpc::{CallSealer, LONG_REPLY_LEN_MAX};
use stag_wire::rpc::AuthSys;
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::Client;
use super::answer::Answer;
use super::error::ClientError;
use super::job::{CallData, CallJob, Job};
use super::pending::{Pending, promise};

/// Octets of arguments, without data, that most Calls have at most.
const ARGUMENTS_USUAL: usize = 1024;

/// Octets of arguments, without data, that any Call may have.
const ARGUMENTS_MAX: usize = 1 << 20;

/// Octets of results, without data, unless told otherwise.
const RESULTS_MAX: u32 = 64 << 10;

/// Describes a Call, and makes it. Made by [`Client::request`].
#[must_use = "nothing is called before call or begin"]
pub struct CallBuilder<'a> {
    client: &'a Client,
    job: CallJob,
    /// Why it cannot be made.
    error: Option<ClientError>,
}

impl<'a> CallBuilder<'a> {
    pub(super) fn new(
        client: &'a Client,
        program: u32,
        version: u32,
        procedure: u32,
        timeout: Duration,
    ) -> CallBuilder<'a> {
        let job = CallJob::new(program, version, procedure, timeout, RESULTS_MAX);
        CallBuilder { client, job, error: None }
    }

    /// Gives the Call data: an eligible argument of its procedure, which the server fetches. It stands behind the arguments, or
    /// where `encode` says [`eligible_opaque_reduced`](Writer::eligible_opaque_reduced) with the length of the data.
    pub fn data(mut self, data: impl Into<CallData>) -> Self {
        self.job.data = Some(data.into());
        self
    }

    /// Offers memory for `len` octets of data, for the eligible result of the procedure: [`Answer::data`].
    pub fn room(mut self, len: usize) -> Self {
        self.job.room = Some(len);
        self
    }

    /// Octets that results may have, without data. What does not fit inline takes as much memory. Default: 64 KiB, at most 1 MiB.
    pub fn results_max(mut self, len: u32) -> Self {
        self.job.results_max = len.min(LONG_REPLY_LEN_MAX as u32);
        self
    }

    /// How long the Call may take, with the time that it waits for its turn.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.job.timeout = timeout;
        self
    }

    /// Does not send the Call again when its connection ends: it must not be executed twice, and the server does not remember it.
    pub fn once(mut self) -> Self {
        self.job.retransmit = false;
        self
    }

    /// Calls as this user (AUTH_SYS). Otherwise the Call names no user (AUTH_NONE). The server has only the client's word for it.
    pub fn user(mut self, user: &AuthSys<'_>) -> Self {
        let mut body = vec![0; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut body);
        let written = user.encode(&mut writer).map(|()| writer.position());
        match written {
            Ok(len) => {
                body.truncate(len);
                self.job.user = Some(body);
            }
            Err(Overflow) => self.error = Some(ClientError::ArgumentsTooLong(AuthSys::BODY_LEN_MAX)),
        }
        self
    }

    /// Seals the Call, and verifies its answer: a flavor of your own ([`rpc::Flavor`](crate::rpc::Flavor)) at the server's end. The Call is
    /// not sent again when its connection ends. One whose arguments and results are protected has no [`data`](CallBuilder::data) that
    /// goes by chunk, and no [`room`](CallBuilder::room).
    pub fn sealed_by(mut self, sealer: Arc<dyn CallSealer + Send + Sync>) -> Self {
        self.job.sealer = Some(sealer);
        self
    }

    /// Makes the Call, and waits for its results. `encode` writes the arguments. It runs on this thread, and again if they turn out
    /// long.
    ///
    /// # Errors
    ///
    /// Why there are no results.
    pub fn call(
        self,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<Answer, ClientError> {
        self.begin(encode)?.wait()
    }

    /// Makes the Call, and waits for nothing: the [`Pending`] is a future, too. As many Calls are sent at once as the server grants;
    /// others wait for their turn.
    ///
    /// # Errors
    ///
    /// Why the Call cannot be made.
    pub fn begin(
        mut self,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<Pending<Answer>, ClientError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut room = ARGUMENTS_USUAL;
        let mut octets = vec![0; room];
        self.job.position = loop {
            let mut writer = Writer::new(&mut octets);
            if encode(&mut writer).is_ok() {
                let (len, positions) = (writer.position(), writer.reduced_positions());
                let position = match (positions, &self.job.data) {
                    ([], None) => None,
                    // Behind the arguments, with its length word.
                    ([], Some(_)) => Some(len),
                    // The length word is written already, and is written again.
                    ([position], Some(_)) => Some(*position as usize - 4),
                    (positions, _) => return Err(ClientError::Items(positions.len())),
                };
                let has_word = !positions.is_empty();
                octets.truncate(len);
                if let (Some(position), true) = (position, has_word) {
                    octets.drain(position..position + 4);
                }
                break position;
            }
            if room >= ARGUMENTS_MAX {
                return Err(ClientError::ArgumentsTooLong(ARGUMENTS_MAX));
            }
            room *= 4;
            octets = vec![0; room];
        };
        self.job.arguments = octets;
        let (promise, pending) = promise();
        self.client.send(Job::Call(Box::new(self.job), promise))?;
        Ok(pending)
    }
}

impl fmt::Debug for CallBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBuilder").field("job", &self.job).finish_non_exhaustive()
    }
}
