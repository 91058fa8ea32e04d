package connectivity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"istio-pod-network-controller/internal/printable"
)

// Kind is what a proof shows.
type Kind string

// The kinds. Each of the first four is proven for each family of the pod's addresses.
const (
	KindOutbound Kind = "outbound"      // what the application sends goes to its proxy
	KindProxy    Kind = "proxy"         // what the proxy sends does not come back to it
	KindInbound  Kind = "inbound"       // what enters the pod goes to its proxy
	KindExcluded Kind = "excluded-port" // an excluded port is reached directly
	KindPods     Kind = "pods"          // the pods run
	KindReport   Kind = "report"        // the agent says on the pods that it has programmed them
)

// Proof is one result of the client. Why is empty if it is proven.
type Proof struct {
	Kind   Kind   `json:"kind"`
	Family string `json:"family"`
	Why    string `json:"why,omitempty"`
}

// proofInterval is the time between two tries: an agent that only watches programs a pod a moment after its start.
const proofInterval = 200 * time.Millisecond

// notTried begins the reason of a proof that needs another one.
const notTried = "not tried"

// maxWhy keeps eight proofs below the 4096 bytes of a container's termination message.
const maxWhy = 300

// Client is the application that connects to the server pod.
type Client struct {
	Pod, Server string // names
	Targets     []netip.Addr
	For         time.Duration // how long what is not proven is tried again
	Dial        Dialer        // nil means the ordinary way
}

// Prove tries until everything is proven or the time is up, and writes the proofs as JSON.
func (c Client) Prove(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, c.For)
	defer cancel()
	proofs := make([][]Proof, len(c.Targets))
	var families sync.WaitGroup
	for i, target := range c.Targets {
		families.Go(func() { proofs[i] = c.proveFamily(ctx, target) })
	}
	families.Wait()
	if err := json.NewEncoder(out).Encode(slices.Concat(proofs...)); err != nil {
		return fmt.Errorf("write proofs: %w", err)
	}
	return nil
}

// proveFamily tries everything again until all of it holds at once, or ctx ends.
func (c Client) proveFamily(ctx context.Context, target netip.Addr) []Proof {
	tick := time.NewTicker(proofInterval)
	defer tick.Stop()
	for {
		proofs := c.try(context.WithoutCancel(ctx), target)
		if !slices.ContainsFunc(proofs, func(p Proof) bool { return p.Why != "" }) {
			return proofs
		}
		select {
		case <-ctx.Done():
			return proofs
		case <-tick.C:
		}
	}
}

// try makes one connection to each port. It is bounded by dialLimit.
func (c Client) try(ctx context.Context, target netip.Addr) []Proof {
	ports := []uint16{portCaptured, portEntering, portExcluded}
	answers, errs := make([]Answer, len(ports)), make([]error, len(ports))
	var connections sync.WaitGroup
	for i, port := range ports {
		connections.Go(func() {
			answers[i], errs[i] = c.Dial.ask(ctx, netip.AddrPortFrom(target, port), http.Header{}, dialLimit)
		})
	}
	connections.Wait()
	return c.judge(target, answers, errs)
}

// judge returns what the answers at the captured, the entering and the excluded port prove.
func (c Client) judge(target netip.Addr, answers []Answer, errs []error) []Proof {
	family := familyOf(target)
	return []Proof{
		{KindOutbound, family, short(expect(Answer{Role: RoleOutbound, Pod: c.Pod, Dst: netip.AddrPortFrom(target, portCaptured)}, answers[0], errs[0]))},
		{KindProxy, family, short(c.proxy(answers[0], errs[0]))},
		{KindInbound, family, short(expect(Answer{Role: RoleInbound, Pod: c.Server, Dst: netip.AddrPortFrom(target, portEntering)}, answers[1], errs[1]))},
		{KindExcluded, family, short(expect(Answer{Role: RoleApplication, Pod: c.Server, Dst: answers[2].Dst}, answers[2], errs[2]))},
	}
}

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func short(why string) string { return printable.Short(why, maxWhy) }

// proxy says why the proxy's own connection did not leave the pod, or "". It is made only if the proxy got the application's.
func (c Client) proxy(a Answer, err error) string {
	switch {
	case err != nil || a.Role != RoleOutbound:
		return notTried + ": the application's connection did not reach the proxy"
	case a.Next == nil:
		return "the proxy's own connection to " + a.Dst.String() + ": " + a.Fault
	case a.Next.Role == RoleOutbound && a.Next.Pod == c.Pod:
		return "the proxy's own connection came back to the proxy"
	case a.Next.Pod != c.Server:
		return fmt.Sprintf("the proxy's own connection reached the %s side of %s instead of %s", a.Next.Role, a.Next.Pod, c.Server)
	}
	return ""
}

// expect says how who answered differs from who should have, or "".
func expect(want, have Answer, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case have.Role != want.Role || have.Pod != want.Pod:
		return fmt.Sprintf("the connection reached %s instead of %s", who(have), who(want))
	case have.Dst != want.Dst:
		return fmt.Sprintf("%s sees the destination %s instead of %s", who(have), have.Dst, want.Dst)
	}
	return ""
}

func who(a Answer) string {
	switch a.Role {
	case RoleApplication:
		return "the application of " + a.Pod
	case RoleOutbound, RoleInbound:
		return fmt.Sprintf("the proxy of %s (%s side)", a.Pod, a.Role)
	}
	return fmt.Sprintf("%q of %q", a.Role, a.Pod)
}
