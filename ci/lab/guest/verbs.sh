#!/usr/bin/env bash
# Can a program on libibverbs and librdmacm use the guest's devices? And can it reach the kernel's nfsd?
. /payload/lib.sh
net_eth0; net_dummy; rdma_modules
bad=0
for k in siw rxe; do
  say "$k"
  rdma_link $k dummy0
  ibv_devinfo -d $k-dummy0 -v | grep -E 'hca_id|transport|fw_ver|max_qp_wr|max_sge|max_mr_size|device_cap|state|link_layer|active_mtu|max_qp_rd_atom|GID\[' || bad=1
  ls /dev/infiniband | tr '\n' ' '; echo
  rping -s -a $ADDR -p 7174 -C 20 -S 4096 -V >/tmp/rps.$k 2>&1 & s=$!
  sleep 1
  if timeout 30 rping -c -a $ADDR -p 7174 -C 20 -S 4096 -V >/tmp/rpc.$k 2>&1; then echo "ok   rping over $k"; else echo "FAIL rping over $k"; tail -5 /tmp/rp?.$k; bad=1; fi
  wait $s
  for t in ib_send_bw ib_write_bw ib_read_bw; do
    $t -R -d $k-dummy0 -s 65536 -n 50 -p 7180 >/tmp/s.$k 2>&1 & s=$!
    sleep 1.5
    if timeout 40 $t -R -d $k-dummy0 -s 65536 -n 50 -p 7180 $ADDR >/tmp/c.$k 2>&1; then
      echo "ok   $t over $k: $(awk '$1 == 65536 {print $4, "MB/s average"}' /tmp/c.$k)"
    else echo "note: $t over $k did not end well"; tail -3 /tmp/c.$k; fi
    kill $s 2>/dev/null; wait $s 2>/dev/null
  done
  rdma_unlink $k dummy0
done
exit $bad
