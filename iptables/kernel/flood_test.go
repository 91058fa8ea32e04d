package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// flood keeps the nftables of a namespace locked, as a process of its pod can: one transaction follows another, each of so many
// rules, and the kernel takes one at a time. end returns when it is over.
func flood(t *testing.T, ns *netns.NS, rules int) (end func()) {
	t.Helper()
	attribute := func(b []byte, kind uint16, data []byte) []byte {
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
		return append(b, make([]byte, -len(data)&3)...)
	}
	var out []byte
	put := func(kind, flags uint16, family byte, resource uint16, attributes []byte) {
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+4+len(attributes)))
		out = binary.NativeEndian.AppendUint16(out, kind)
		out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|flags)
		out = append(out, 0, 0, 0, 0, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
		out = append(binary.BigEndian.AppendUint16(out, resource), attributes...)
	}
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	table, chain := []byte("flood\x00"), []byte("c\x00")
	put(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	put(subsystem|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET, 0, attribute(nil, unix.NFTA_TABLE_NAME, table))
	put(subsystem|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_INET, 0, attribute(attribute(nil, unix.NFTA_CHAIN_TABLE, table), unix.NFTA_CHAIN_NAME, chain))
	rule := attribute(attribute(nil, unix.NFTA_RULE_TABLE, table), unix.NFTA_RULE_CHAIN, chain)
	for range rules {
		put(subsystem|unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_INET, 0, rule)
	}
	put(subsystem|unix.NFT_MSG_DELTABLE, 0, unix.NFPROTO_INET, 0, attribute(nil, unix.NFTA_TABLE_NAME, table))
	put(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)

	var stop atomic.Bool
	done, running := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		started := sync.OnceFunc(func() { close(running) })
		defer started()
		fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd) //nolint:errcheck // the test is over
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(out)+1<<20); err != nil {
			t.Error(err)
		}
		for n := 0; !stop.Load(); n++ {
			if n == 1 {
				started()
			}
			if err := unix.Sendto(fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	<-running
	return func() { stop.Store(true); <-done }
}

func TestAPodThatKeepsTheKernelBusyIsAloneInThat(t *testing.T) {
	for name, b := range allBackends(t) {
		t.Run(name, func(t *testing.T) {
			ns, other := kerneltest.New(t), kerneltest.New(t)
			if _, err := b.Present(t.Context(), at(other)); err != nil { // the first visit opens the agent's own namespace for good
				t.Fatal(err)
			}
			goroutines, descriptors := goruntime.NumGoroutine(), openDescriptors(t)
			end := flood(t, ns, 300_000)
			for range 20 {
				_ = applyInTime(t, b, ns, 50*time.Millisecond)
				if _, err := b.Present(t.Context(), at(other)); err != nil {
					t.Errorf("another namespace suffers: %v", err)
				}
				if now := goruntime.NumGoroutine(); now > goroutines+20 {
					t.Errorf("%d goroutines before, %d during it", goroutines, now)
				}
			}
			end()
			// A call that the kernel has not finished holds up later ones of this namespace, and may look like one of the goroutines before.
			kerneltest.Eventually(t, "the pod is programmed again", func() bool {
				return applyInTime(t, b, ns, 5*time.Second) == nil
			})
			kerneltest.Eventually(t, "nothing is left of it", func() bool {
				return goruntime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
			})
		})
	}
}

// The kernel answers questions while it is busy with transactions.
func TestWhatDiffersIsSeenThoughTheKernelIsBusy(t *testing.T) {
	b, ns := allBackends(t)[Nftables], kerneltest.New(t)
	apply := func(patience time.Duration) (seen iptables.Drift, err error) {
		found := make(chan iptables.Drift, 1)
		ctx, cancel := context.WithTimeout(iptables.OnDrift(t.Context(), func(d iptables.Drift) { found <- d }), patience)
		defer cancel()
		_, err = b.Apply(ctx, at(ns), tproxyRules(t))
		select {
		case seen = <-found:
		default:
		}
		return seen, err
	}
	if _, err := apply(time.Minute); err != nil {
		t.Fatal(err)
	}
	if removed, err := b.chosen.Yield(t.Context(), ns); err != nil || !removed {
		t.Fatal(removed, err)
	}
	// How long one transaction takes is the machine's: they grow until a call comes too late.
	late := func(rules int) bool {
		defer flood(t, ns, rules)()
		for range 5 {
			seen, err := apply(400 * time.Millisecond)
			if !slices.Equal(seen.Kinds(), []iptables.Kind{iptables.KindAbsent}) {
				t.Errorf("our rules are gone: seen %q, error %v", seen, err)
			}
			if err != nil {
				return true
			}
			// The rules came in between two transactions of the pod.
			if _, err := b.chosen.Yield(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
		}
		return false
	}
	rules := 300_000
	for ; !late(rules) && rules < 3_000_000; rules *= 2 {
	}
	if t.Logf("%d rules a transaction", rules); rules > 3_000_000 {
		t.Error("the kernel was never too busy")
	}
}

// applyInTime wants a call to come back by its deadline, and to say nothing else than that it was late.
func applyInTime(t *testing.T, b Backend, ns *netns.NS, patience time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := time.Now()
	_, err := b.Apply(ctx, at(ns), tproxyRules(t))
	if took := time.Since(start); took > patience+time.Second {
		t.Errorf("a call of %s took %s: %v", patience, took, err)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the kernel has not said no: %v", err)
	}
	return err
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
