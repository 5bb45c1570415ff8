//! The cost of one message's headers: read once in the Receive buffer, written once in the Send buffer.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use stag_wire::nfs3::{Handle, ReadArguments};
use stag_wire::rpc::{AuthSys, CallHeader, Gids, OpaqueAuth, ReplyHeader, emit_success, flavor};
use stag_wire::rpcrdma::{Emitter, Header, MessageKind, Segment, emit_plain};
use stag_wire::xdr::{Reader, Writer};

const XID: u32 = 0x1122_3344;
const SEGMENT: Segment = Segment { handle: 0xd202, length: 1 << 20, offset: 0x7f00_0004_0000 };

/// A transport header without chunks, and one with a Write chunk of one segment, each with 64 octets behind it.
fn transport(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rpcrdma");
    let mut plain = [0; 28 + 64];
    emit_plain(&mut plain, XID, 32).expect("room");
    let mut chunk = [0; 52 + 64];
    emit_chunk(&mut chunk);

    group.bench_function("parse/plain", |b| b.iter(|| parse(black_box(&plain))));
    group.bench_function("parse/one chunk", |b| b.iter(|| parse(black_box(&chunk))));
    group.bench_function("emit/plain", |b| {
        b.iter(|| {
            black_box(emit_plain(black_box(&mut plain), black_box(XID), 32).map(|rest| rest.len())).is_ok()
        });
    });
    group.bench_function("emit/one chunk", |b| b.iter(|| emit_chunk(black_box(&mut chunk))));
    group.finish();
}

/// Parses, and looks at what a Responder looks at.
fn parse(message: &[u8]) -> (u32, u32, u64, usize) {
    let (header, payload) = Header::parse(message).expect("a good header");
    let room = header.write_list().map(|chunk| chunk.total_len()).sum();
    (header.xid(), header.credits(), room, payload.len())
}

fn emit_chunk(buf: &mut [u8]) -> usize {
    let mut emitter = Emitter::new(buf, MessageKind::Msg, XID, 32).expect("room");
    emitter.write_chunk(&[SEGMENT]).expect("room");
    emitter.finish().expect("room").0
}

/// The RPC header behind it: a Call with AUTH_SYS and five groups, and a Reply that says success.
fn rpc(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rpc");
    let mut body = [0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    let gids = Gids::new(&[4, 24, 27, 30, 1000]).expect("few enough");
    let auth = AuthSys { stamp: 1, machine_name: b"client", uid: 1000, gid: 1000, gids };
    writer.value(&auth).expect("room");
    let call = CallHeader {
        xid: XID,
        program: 100_003,
        version: 3,
        procedure: 6,
        credential: OpaqueAuth { flavor: flavor::AUTH_SYS, body: writer.written() },
        verifier: OpaqueAuth::NONE,
    };
    let mut wire = [0; 512];
    let len = call.emitted_len();
    call.emit(&mut Writer::new(&mut wire)).expect("room");

    group.bench_function("parse/call", |b| {
        b.iter(|| {
            let call = CallHeader::parse(&mut Reader::new(black_box(&wire[..len]))).expect("a good Call");
            let auth = AuthSys::parse(call.credential.body).expect("a good credential");
            (call.procedure, auth.uid, auth.gids.len())
        });
    });
    let mut out = [0; 512];
    group.bench_function("emit/call", |b| {
        b.iter(|| call.emit(&mut Writer::new(black_box(&mut out))).is_ok());
    });
    let mut reply = [0; 24];
    emit_success(&mut Writer::new(&mut reply), XID).expect("room");
    group.bench_function("parse/reply", |b| {
        b.iter(|| {
            let reply = ReplyHeader::parse(&mut Reader::new(black_box(&reply))).expect("a good Reply");
            (reply.xid, reply.is_success())
        });
    });
    group.bench_function("emit/reply", |b| {
        b.iter(|| emit_success(&mut Writer::new(black_box(&mut out)), black_box(XID)).is_ok());
    });
    group.finish();
}

/// The arguments of a READ.
fn nfs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nfs3");
    let arguments = ReadArguments { file: Handle(&[7; 32]), offset: 1 << 20, count: 1 << 20 };
    let mut wire = [0; 64];
    let mut writer = Writer::new(&mut wire);
    writer.value(&arguments).expect("room");
    let len = writer.position();
    group.bench_function("parse/read arguments", |b| {
        b.iter(|| {
            let arguments: ReadArguments<'_> =
                Reader::new(black_box(&wire[..len])).value().expect("good arguments");
            (arguments.offset, arguments.count)
        });
    });
    let mut out = [0; 64];
    group.bench_function("emit/read arguments", |b| {
        b.iter(|| Writer::new(black_box(&mut out)).value(black_box(&arguments)).is_ok());
    });
    group.finish();
}

criterion_group!(benches, transport, rpc, nfs);
criterion_main!(benches);
