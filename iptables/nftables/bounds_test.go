package nftables

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func TestALookIsBoundedWhateverThereIs(t *testing.T) {
	want := rules(t, nil)
	cases := map[string]spoil{
		"100,000 rules in a chain of ours": func(t *testing.T, ns *netns.NS) {
			t.Helper()
			many := make([]rawMessage, 100_000)
			for i := range many {
				many[i] = forgedRule("outbound", nil)
			}
			forgeRaw(t, ns, many...)
		},
		"100,000 chains in our table": manyChains(iptables.TableName),
		"5,000 sets in our table":     raw(manySets(5_000)...),
		"200,000 elements in another set": func(t *testing.T, ns *netns.NS) {
			t.Helper()
			forgeRaw(t, ns, forgedSet("evil.0", 7, 4, nil))
			keys := make([][]byte, 200_000)
			for i := range keys {
				keys[i] = binary.BigEndian.AppendUint32(nil, uint32(i))
			}
			forgeElements(t, ns, "evil.0", keys)
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) { mustMend(t, want, spoil) })
	}
	t.Run("200,000 elements in a set of ours", func(t *testing.T) {
		listed := rules(t, func(s *iptables.Spec) { s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
		mustMend(t, listed, func(t *testing.T, ns *netns.NS) {
			t.Helper()
			forgeIntervals(t, ns, "exclude-cidr4.0", 100_000)
		})
	})
	t.Run("100,000 chains in a foreign table", func(t *testing.T) {
		ns, b := kerneltest.New(t), newByPath(t)
		manyChains("foreign")(t, ns)
		for _, changed := range []bool{true, false} {
			bounded(t, "apply", func(ctx context.Context) error {
				out, err := b.Apply(ctx, ns.Path(), want)
				if out.Changed() != changed {
					t.Errorf("changed %q", out.Drift)
				}
				return err
			})
		}
		bounded(t, "verify", func(ctx context.Context) error {
			drift, err := b.Verify(ctx, ns.Path(), want)
			if len(drift) > 0 {
				t.Errorf("drift %q", drift)
			}
			return err
		})
	})
}

// forgeElements fills a set, some thousand elements a message.
func forgeElements(t *testing.T, ns *netns.NS, set string, keys [][]byte) {
	t.Helper()
	var messages []rawMessage
	for len(keys) > 0 {
		n := min(len(keys), 2000)
		messages = append(messages, forgedElements(set, nil, keys[:n]...))
		keys = keys[n:]
	}
	forgeRaw(t, ns, messages...)
}

// forgeIntervals fills a set with intervals of one address.
func forgeIntervals(t *testing.T, ns *netns.NS, set string, n int) {
	t.Helper()
	var messages []rawMessage
	for first := 0; first < n; first += 1000 {
		var list []byte
		for i := first; i < first+1000; i++ {
			for _, end := range []uint32{0, 1} {
				key := binary.BigEndian.AppendUint32(nil, 11<<24+2*uint32(i)+end)
				e := add(nil, unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, add(nil, unix.NFTA_DATA_VALUE, key))
				e = add(e, unix.NFTA_SET_ELEM_FLAGS, binary.BigEndian.AppendUint32(nil, end))
				list = add(list, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
			}
		}
		attrs := add(ofSet(set), unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, list)
		messages = append(messages, rawMessage{unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, attrs})
	}
	forgeRaw(t, ns, messages...)
}

func manyChains(table string) spoil {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		messages := []rawMessage{forgedTable(table)}
		for i := range 100_000 {
			messages = append(messages, forgedChain(table, "c"+string(rune('a'+i%26))+time.Duration(i).String()))
		}
		forgeRaw(t, ns, messages...)
	}
}
