#!/usr/bin/env bash
# Kernel client against kernel server over siw and over rxe, in every NFS version.
#   smoke.sh [siw|rxe ...] [3 4.0 4.1 4.2 ...]
. /payload/lib.sh
kinds=() vers=()
for a; do case $a in siw | rxe) kinds+=("$a") ;; *) vers+=("$a") ;; esac; done
[ ${#kinds[@]} -gt 0 ] || kinds=(siw rxe)
[ ${#vers[@]} -gt 0 ] || vers=(3 4.0 4.1 4.2)

net_eth0; net_dummy; rdma_modules
bad=0
check() { if "${@:2}"; then echo "ok   $1"; else echo "FAIL $1"; bad=1; fi; }

work() {
  local d=$MNT/$1 s
  mkdir "$d" || return 1
  for s in 0 1 3 511 512 1000 4095 4096 4097 8192 65536 100001 1048576 1048577 5000003; do
    head -c $s /dev/urandom >/tmp/a
    cp /tmp/a "$d/f$s"; drop; cmp /tmp/a "$d/f$s" || { echo "differs: $s"; return 1; }
    cmp /tmp/a "$EXPORT/$1/f$s" || { echo "server differs: $s"; return 1; }
  done
  for s in 8 255 1000 3000 4000; do
    ln -s "$(printf "%${s}s" | tr ' ' x)" "$d/l$s"; drop
    [ "$(readlink "$d/l$s" | wc -c)" = $((s + 1)) ] || { echo "link $s"; return 1; }
  done
  mkdir "$d/many"
  (cd "$EXPORT/$1/many" && python3 -c 'for i in range(3000): open("file-with-a-longish-name-%06d" % i, "w").close()')
  drop; [ "$(ls "$d/many" | wc -l)" = 3000 ] || { echo "readdir: $(ls "$d/many" | wc -l)"; return 1; }
  mv "$d/f512" "$d/g512" && [ -e "$EXPORT/$1/g512" ] || return 1
  ln "$d/g512" "$d/h512" && rm "$d/g512" && [ "$(stat -c %h "$d/h512")" = 1 ] || return 1
  chmod 640 "$d/f4096" && [ "$(stat -c %a "$EXPORT/$1/f4096")" = 640 ] || return 1
  truncate -s 100 "$d/f8192" && [ "$(stat -c %s "$EXPORT/$1/f8192")" = 100 ] || return 1
  case $1 in
    *-3) setfacl -m u:1000:rw "$d/f4096" && getfacl "$d/f4096" 2>/dev/null | grep -q 'user:1000:rw' || { echo acl; return 1; } ;;
    *) nfs4_getfacl "$d/f4096" >/tmp/acl && grep -q OWNER@ /tmp/acl || { echo acl; return 1; } ;;
  esac
  case $1 in
    *-4.2)
      fallocate -l 65536 "$d/fal" || echo "note: no fallocate"
      cp --reflink=auto "$d/f1048576" "$d/copy" && cmp "$d/copy" "$d/f1048576" || return 1
      setfattr -n user.lab -v hello "$d/copy" && getfattr -n user.lab "$d/copy" >/dev/null 2>&1 || echo "note: no user xattr" ;;
  esac
  df "$d" >/dev/null && sync
}

for k in "${kinds[@]}"; do
  say "$k"
  rdma_link "$k" dummy0; rdma link
  nfsd_up; cat /proc/fs/nfsd/portlist
  for v in "${vers[@]}"; do
    s=$EPOCHREALTIME
    check "$k mount vers=$v" nfs_mount "$v" || { dmesg | tail -5; continue; }
    mountpoint -q $MNT || { dmesg | tail; continue; }
    grep " $MNT nfs" /proc/mounts
    check "$k work vers=$v" work "$k-$v"
    sed -n "/ mounted on ${MNT//\//\\/} /,/per-op/p" /proc/self/mountstats | grep -E 'xprt:|RPC|opts:' 
    nfs_umount
    echo "$k vers=$v took $(python3 -c "print('%.1f' % ($EPOCHREALTIME-$s))") s"
  done
  nfsd_down
  rdma_unlink "$k" dummy0
done
dmesg | grep -iE 'rpcrdma|svcrdma|siw|rxe|nfsd?:|BUG|WARNING|Call Trace' | tail -40
exit $bad
