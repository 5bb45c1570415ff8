/* What the bindings are made of: see bindings.sh. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
