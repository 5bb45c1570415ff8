//! What who embeds Stag has to decide.

/// Which fabric when.
///
/// | URL | between | needs | a Call there and back | trust |
/// |---|---|---|---|---|
/// | `shm://NAME` | processes of one machine | nothing | below 1 µs, if both ends poll | **all of both ends' memory**: see [`security`] |
/// | `iwarp://HOST:PORT` | machines | a TCP port | as TCP | the chunks of Calls under way |
/// | `verbs://HOST:PORT` | machines | an RDMA device, and rdma-core at run time | as the device | the chunks of Calls under way |
/// | `tcp://HOST:PORT` | machines, peers without RDMA | a TCP port | as TCP | nothing |
///
/// The service is the same over all of them, and so is [`Client`](crate::Client). Over TCP all data is in the messages, and a Call cannot
/// be sealed. `verbs` was tested on software devices only.
///
/// Features leave out what is not used: `default-features = false, features = ["shm"]` compiles no NFS, no io_uring and no bindings of
/// rdma-core.
pub mod fabrics {}

/// Which thread runs what.
///
/// - **A core of the server** is one thread: it polls, runs handlers, sends. Handlers of one core never run at the same time, so a
///   service needs no lock. A handler that blocks stops its core.
/// - **Idle cores** poll for 50 µs and then sleep ([`PollMode`](crate::runtime::PollMode)); `PollMode::Busy` never sleeps, and takes its
///   core for itself alone.
/// - **Other threads** reach a core by [`Deferred`](crate::rpc::Deferred), or by a [`mailbox`](crate::runtime::mailbox) that a service looks
///   into ([`Service::poll_later`](crate::rpc::Service::poll_later)).
/// - **A client** is one thread of its own for all clones of its [`Client`](crate::Client). Calls of any thread go there and their answers
///   come back, some microseconds each. What cannot afford that polls an [`Engine`](crate::rpc::Engine) on its own thread.
/// - **What may be sent**: [`Client`](crate::Client), [`Pending`](crate::Pending), [`SendBuf`](crate::memory::SendBuf),
///   [`Deferred`](crate::rpc::Deferred), [`Loan`](crate::memory::Loan), [`RunningServer`](crate::RunningServer),
///   [`StatisticsHandle`](crate::StatisticsHandle). What may not, the compiler says: pools and buffers count in plain numbers, which is why a Call needs no atomic instruction.
/// - **A handler that panics** costs its Call, and its state stays as it was in that moment:
///   [`PanicGuard`](crate::rpc::PanicGuard). A panic elsewhere on one of several cores ends the process.
pub mod threads {}

/// Where memory comes from, and how much.
///
/// All of it is taken when a server or client starts, touched, and registered once. [`Server::memory`](crate::Server::memory) is the sum
/// of all cores. Of each core's part, messages take a fixed sum (about 9 MiB, fewer with a smaller `receives_max`:
/// [`Server::tune`](crate::Server::tune)), and the rest is for data: of Calls on their way, and what services keep.
///
/// - Data on its way is shared between clients, so that one cannot take all. What a service keeps is marked as
///   [stored](crate::memory::Shared::mark_stored), and does not count then.
/// - A handler must expect that there is none: [`Placed::is_missing`](crate::rpc::Placed::is_missing), `None` of
///   [`Pool::take_len`](crate::memory::Pool::take_len) and [`Reply::data_room`](crate::rpc::Reply::data_room).
/// - A Call may bring [`Server::data_max`](crate::Server::data_max) octets: 1 MiB unless told otherwise. A longer one is refused, and the
///   server's log says so.
/// - At the end [`ServerEnd::buffers_lost`](crate::ServerEnd::buffers_lost) says whether every buffer came back.
///
/// Memory that the program has already (hugepages of another library, a page cache, persistent memory) becomes an arena by
/// [`Arena::adopt`](crate::memory::Arena::adopt), from a descriptor, or [`Arena::foreign`](crate::memory::Arena::foreign), from an address. On
/// the polled engine, [register](crate::fabric::Provider::register) it before the first connection, cut it by a
/// [`Pool`](crate::memory::Pool), mark its buffers as stored, and give them to [`Reply::piece`](crate::rpc::Reply::piece): they are sent from
/// where they lie. Shared memory takes descriptors only.
///
/// **What does not exist**: [`Server`](crate::Server) does not register such memory, and the memory of a GPU is not known.
pub mod memory {}

/// How to fill in a configuration, and what a new version may change of it.
///
/// The builders have methods. Each `…Config` of the engine is a plain struct: it has `Default`, or a `new` that takes what has no usual
/// value. Name what you change, and take the rest from there:
///
/// ```
/// use stag::prelude::*;
///
/// let config = EngineConfig { connections_max: 8, ..EngineConfig::default() };
/// let budget = Budget::new(64 << 20);
/// let arena = ArenaConfig { node: Some(0), ..ArenaConfig::new("objects", 1 << 20, &budget) };
/// # let _ = (config, arena);
/// ```
///
/// **Always end with `..`, even if all fields are named**: a new field with a default is not a breaking change. One that is renamed, or that
/// means something else, is, and the changes (`.github/CHANGELOG.md`) name it under "Embedders".
pub mod configuration {}

/// What a peer can do.
///
/// - **Over shared memory** a process that is admitted may read and write **all registered memory** of the other end, and the other
///   way round. Processes of the same user are admitted, others only by [`Server::admit`](crate::Server::admit) and
///   [`ClientBuilder::admit`](crate::ClientBuilder::admit). See [`fabric::shm`](crate::fabric::shm#trust).
/// - **Over a network** a peer reaches the chunks that a Call offers it, while the Call lasts, and nothing else.
/// - **Nothing is encrypted**, and no one is authenticated: see [`f_callers`](super::f_callers). Listen where only those can connect who
///   may, or see [`i_own_authentication`](super::i_own_authentication).
/// - What a peer sends can neither crash the engine nor make it allocate without bound. **A handler has to keep that**: each length that
///   it reads has a limit (`opaque(1024)`), and it keeps no more of a client than it wants to.
/// - A client that takes no answers, or fetches nothing, is disconnected after a while
///   ([`EngineConfig::peer_timeout`](crate::rpc::EngineConfig::peer_timeout)).
pub mod security {}
