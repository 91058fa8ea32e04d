package foreign

import (
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

func TestUndoes_byExpression(t *testing.T) {
	write := func(base, offset, size uint32) []byte {
		return expression("payload", number32(unix.NFTA_PAYLOAD_SREG, 1), number32(unix.NFTA_PAYLOAD_BASE, base),
			number32(unix.NFTA_PAYLOAD_OFFSET, offset), number32(unix.NFTA_PAYLOAD_LEN, size))
	}
	read := expression("payload", number32(unix.NFTA_PAYLOAD_DREG, 1), number32(unix.NFTA_PAYLOAD_BASE, 2), number32(unix.NFTA_PAYLOAD_LEN, 2))
	for name, c := range map[string]struct {
		rule []byte
		want bool
	}{
		"nothing":                     {nil, false},
		"no attributes":               {[]byte{1, 2, 3}, false},
		"a counter":                   {expression("counter"), false},
		"a port that is read":         {read, false},
		"a port":                      {append(read, write(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)...), true},
		"an address":                  {write(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4), true},
		"an address of IPv6":          {write(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16), true},
		"an address by the link":      {write(unix.NFT_PAYLOAD_LL_HEADER, 30, 4), true},
		"an offset beyond any header": {write(unix.NFT_PAYLOAD_NETWORK_HEADER, 1<<32-1, 1<<32-1), true},
		"a DSCP":                      {write(unix.NFT_PAYLOAD_NETWORK_HEADER, 0, 2), false},
		"a TTL":                       {write(unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 2), false},
		"a queue":                     {expression("queue", number32(1, 0)), true},
		"another device":              {append(read, expression("fwd")...), true},
		"a copy":                      {expression("dup"), true},
		"another socket":              {expression("tproxy"), true},
		"a queue of iptables":         {expression("target", rawnetlink.Text(unix.NFTA_TARGET_NAME, "NFQUEUE")), true},
		"another socket by iptables":  {expression("target", rawnetlink.Text(unix.NFTA_TARGET_NAME, "TPROXY")), true},
		"a refusal of iptables":       {expression("target", rawnetlink.Text(unix.NFTA_TARGET_NAME, "REJECT")), false},
	} {
		if got := undoes(unix.NFPROTO_INET, c.rule); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
