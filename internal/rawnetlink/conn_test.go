package rawnetlink_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// What was not read of one answer must not be taken for the next one.
func TestConnForgetsWhatWasNotRead(t *testing.T) {
	rules := rawnetlink.Request{Kind: unix.RTM_GETRULE, Header: append([]byte{unix.AF_INET}, make([]byte, 11)...)}
	inside(t, func() {
		c, err := rawnetlink.Open(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent := link(1)
		silent.Kind = unix.RTM_SETLINK
		if _, err := c.Ask(time.Now().Add(20*time.Millisecond), link(1), silent, link(1)); err == nil {
			t.Error("a request without an answer was answered")
		}
		for range 3 {
			if err := c.Dump(soon(), rules, func([]byte) bool { return false }); err != nil {
				t.Error(err)
			}
			answers, err := c.Ask(soon(), link(4711), link(1))
			if err != nil || !errors.Is(answers[0].Err, unix.ENODEV) || len(answers[1].Body) == 0 {
				t.Errorf("%+v, %v", answers, err)
			}
		}
	})
}
