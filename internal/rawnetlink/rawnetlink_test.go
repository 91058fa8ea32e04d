package rawnetlink_test

import (
	"encoding/binary"
	"errors"
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/test/kerneltest"
)

// inside calls f in a fresh namespace.
func inside(t *testing.T, f func()) {
	t.Helper()
	if err := kerneltest.New(t).Inside(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func soon() time.Time { return time.Now().Add(5 * time.Second) }

// link asks for the interface of an index.
func link(index uint32) rawnetlink.Request {
	header := binary.NativeEndian.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, index)
	return rawnetlink.Request{Kind: unix.RTM_GETLINK, Header: append(header, make([]byte, 8)...)}
}

func TestAttributesAreReadBackAndWhatIsCutOffIsLeftOut(t *testing.T) {
	whole := append(append(rawnetlink.Text(1, "nat"), rawnetlink.Number(2, 7)...), rawnetlink.Bytes(3|unix.NLA_F_NESTED, []byte{1, 2, 3})...)
	want := map[uint16][]byte{1: []byte("nat\x00"), 2: binary.NativeEndian.AppendUint32(nil, 7), 3: {1, 2, 3}}
	if d := cmp.Diff(want, rawnetlink.Attributes(whole)); d != "" || rawnetlink.Name(want[1]) != "nat" {
		t.Error(d)
	}
	for name, c := range map[string]struct {
		data []byte
		want int
	}{
		"nothing":                           {nil, 0},
		"half a header":                     {whole[:3], 0},
		"without the last padding":          {whole[:len(whole)-1], 3},
		"without the last byte of a value":  {whole[:len(whole)-2], 2},
		"a length below that of a header":   {[]byte{3, 0, 1, 0, 0, 0, 0, 0}, 0},
		"a length of nothing":               {[]byte{0, 0, 1, 0, 0, 0, 0, 0}, 0},
		"a length beyond the end":           {[]byte{255, 255, 1, 0}, 0},
		"the same once more: the last wins": {append(whole, rawnetlink.Number(2, 8)...), 3},
	} {
		if got := rawnetlink.Attributes(c.data); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if n := binary.NativeEndian.Uint32(rawnetlink.Attributes(append(whole, rawnetlink.Number(2, 8)...))[2]); n != 8 {
		t.Errorf("of two the first is taken: %d", n)
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(rawnetlink.Text(1, "nat"))
	f.Add([]byte{3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		sum := 0
		for _, value := range rawnetlink.Attributes(data) {
			sum += len(value)
		}
		if sum > len(data) {
			t.Errorf("%d bytes of %d", sum, len(data))
		}
	})
}

func TestEachRequestHasItsOwnAnswer(t *testing.T) {
	inside(t, func() {
		answers, err := rawnetlink.Ask(soon(), unix.NETLINK_ROUTE, link(1), link(4711), link(1))
		if err != nil || len(answers) != 3 {
			t.Fatalf("%v, %v", answers, err)
		}
		for i, want := range []error{nil, unix.ENODEV, nil} {
			if a := answers[i]; !errors.Is(a.Err, want) || (len(a.Body) > 0) != (want == nil) {
				t.Errorf("answer %d: %+v, want error %v", i, a, want)
			}
		}
		if name := rawnetlink.Name(rawnetlink.Attributes(answers[2].Body[unix.SizeofIfInfomsg:])[unix.IFLA_IFNAME]); name != "lo" {
			t.Errorf("name %q", name)
		}
	})
}

// A request that the kernel does not answer ends with the caller's time, and so does one that comes too late.
func TestNobodyWaitsBeyondTheEnd(t *testing.T) {
	silent := link(1)
	silent.Kind = unix.RTM_SETLINK // without NLM_F_ACK
	inside(t, func() {
		for name, end := range map[string]time.Duration{"no answer": 50 * time.Millisecond, "no time": -time.Second} {
			began := time.Now()
			_, err := rawnetlink.Ask(began.Add(end), unix.NETLINK_ROUTE, silent)
			if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took > time.Second || took < end {
				t.Errorf("%s: error %v after %s", name, err, took)
			}
		}
		if err := dump(time.Now(), link(0), func([]byte) bool { return true }); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a dump without time: %v", err)
		}
	})
}

// A node that is busy may leave a thread no time while it sends: what the kernel has answered meanwhile, and done, is taken all the same.
func TestWhatIsAnsweredIsTakenEvenLate(t *testing.T) {
	inside(t, func() {
		answers, err := rawnetlink.Ask(time.Now().Add(-time.Second), unix.NETLINK_ROUTE, link(1), link(1))
		if err != nil || len(answers) != 2 || answers[1].Err != nil {
			t.Errorf("answers %v, error %v", answers, err)
		}
	})
}

func TestADumpEndsWithTheLastOrWhenTheCallerHasEnough(t *testing.T) {
	rules := rawnetlink.Request{Kind: unix.RTM_GETRULE, Header: append([]byte{unix.AF_INET}, make([]byte, 11)...)}
	inside(t, func() {
		for _, want := range []int{1, 2, 3} { // a namespace has three rules
			count := 0
			if err := dump(soon(), rules, func([]byte) bool { count++; return count < want }); err != nil || count != want {
				t.Errorf("%d rules, want %d: %v", count, want, err)
			}
		}
		all := 0
		if err := dump(soon(), rules, func([]byte) bool { all++; return true }); err != nil || all != 3 {
			t.Errorf("%d rules: %v", all, err)
		}
		table := rawnetlink.Request{Kind: unix.RTM_GETROUTE, Header: append([]byte{unix.AF_INET}, make([]byte, 11)...), Attributes: [][]byte{rawnetlink.Number(unix.RTA_TABLE, 15006)}}
		if err := dump(soon(), table, func([]byte) bool { return true }); !errors.Is(err, unix.ENOENT) {
			t.Errorf("the routes of a table that is not there: %v", err)
		}
	})
}

// The kernel refuses a batch as a whole by its first message; who waits for the others waits in vain.
func TestABatchThatIsRefusedAsAWholeEndsAtOnce(t *testing.T) {
	edge := func(kind uint16) rawnetlink.Request {
		return rawnetlink.Request{Kind: kind, Header: binary.BigEndian.AppendUint16([]byte{0, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES), Silent: true}
	}
	del := rawnetlink.Request{
		Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE, Flags: unix.NLM_F_ACK,
		Header: []byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0}, Attributes: [][]byte{rawnetlink.Text(unix.NFTA_TABLE_NAME, "nat")},
	}
	batch := []rawnetlink.Request{edge(unix.NFNL_MSG_BATCH_BEGIN), del, edge(unix.NFNL_MSG_BATCH_END)}
	inside(t, func() {
		if answers, err := rawnetlink.Ask(soon(), unix.NETLINK_NETFILTER, batch...); err != nil || !errors.Is(answers[1].Err, unix.ENOENT) {
			t.Fatalf("%v, %v: want that there is no such table", answers, err)
		}
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		header, rights := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&header, &rights[0]); err != nil {
			t.Fatal(err)
		}
		rights[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &rights[0]); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := rawnetlink.Ask(soon(), unix.NETLINK_NETFILTER, batch...)
		if took := time.Since(began); !errors.Is(err, unix.EPERM) || took > time.Second {
			t.Errorf("error %v after %s", err, took)
		}
	})
}

// A list of which a part was read before a change, and a part after it, may lack what was there all the time.
func TestDump_addressesChangeWhileTheyAreRead_isInterrupted(t *testing.T) {
	inside(t, func() {
		for i := range uint16(500) { // more than one datagram
			change(t, unix.RTM_NEWADDR, i+1)
		}
		all := rawnetlink.Request{Kind: unix.RTM_GETADDR, Header: make([]byte, unix.SizeofIfAddrmsg)}
		for changes, want := range map[int]error{0: nil, 2: nil, 3: rawnetlink.ErrInterrupted} {
			reads := 0
			err := rawnetlink.Uninterrupted(func() error {
				reads++
				first := true
				return dump(soon(), all, func([]byte) bool {
					if first && reads <= changes {
						change(t, unix.RTM_DELADDR, 1)
						change(t, unix.RTM_NEWADDR, 1)
					}
					first = false
					return true
				})
			})
			if !errors.Is(err, want) || reads != min(changes+1, 3) {
				t.Errorf("%d changes: %d reads, error %v", changes, reads, err)
			}
		}
	})
}

// People read it in a report on a pod.
func TestErrInterrupted_text_hasNoTimeout(t *testing.T) {
	err := rawnetlink.ErrInterrupted
	if err.Error() != "what was read has changed meanwhile" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v is a timeout: %t", err, errors.Is(err, os.ErrDeadlineExceeded))
	}
}

// change adds or removes an address of the loopback interface.
func change(t *testing.T, kind, i uint16) {
	t.Helper()
	address := rawnetlink.Bytes(unix.IFA_LOCAL, binary.BigEndian.AppendUint16([]byte{127, 1}, i))
	r := rawnetlink.Request{
		Kind: kind, Flags: unix.NLM_F_ACK, Header: binary.NativeEndian.AppendUint32([]byte{unix.AF_INET, 32, 0, 0}, 1), Attributes: [][]byte{address},
	}
	if kind == unix.RTM_NEWADDR {
		r.Flags |= unix.NLM_F_CREATE
	}
	if answers, err := rawnetlink.Ask(soon(), unix.NETLINK_ROUTE, r); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers)
	}
}

func dump(end time.Time, r rawnetlink.Request, f func(body []byte) (more bool)) error {
	c, err := rawnetlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Dump(end, r, f)
}
