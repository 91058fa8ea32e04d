package nftables

import (
	"context"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"testing"
	"time"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// lookTime and lookMemory are what a look at a namespace may cost, whatever is in it. The time is several times what a slow machine needs.
const (
	lookTime   = 5 * time.Second
	lookMemory = 32 << 20
)

type spoil = func(*testing.T, *netns.NS)

// mustMend changes rules that are in force. Every reader must cope with it and see it, and one apply must repair it.
func mustMend(t *testing.T, want iptables.Ruleset, spoil spoil) {
	t.Helper()
	ns, b := kerneltest.New(t), newByPath(t)
	mustApply(t, b, ns, want)
	spoil(t, ns)
	bounded(t, "read", func(ctx context.Context) error { _, _, err := b.Read(ctx, ns.Path()); return err })
	bounded(t, "verify", func(ctx context.Context) error {
		drift, err := b.Verify(ctx, ns.Path(), want)
		if len(drift) == 0 {
			t.Error("verify sees no drift")
		}
		return err
	})
	bounded(t, "apply", func(ctx context.Context) error {
		out, err := b.Apply(ctx, ns.Path(), want)
		if !out.Changed() {
			t.Error("apply changed nothing")
		}
		return err
	})
	mustHold(t, ns, want)
}

// mustHold verifies the rules with a new Backend, which remembers nothing.
func mustHold(t *testing.T, ns *netns.NS, want iptables.Ruleset) {
	t.Helper()
	b := newByPath(t)
	if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) > 0 {
		t.Errorf("drift %q, error %v", drift, err)
	}
	if mustApply(t, b, ns, want) {
		t.Error("another apply changed something")
	}
}

// bounded calls f, which must end in time and use little memory.
func bounded(t *testing.T, name string, f func(context.Context) error) {
	t.Helper()
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), lookTime)
	defer cancel()
	err := f(ctx)
	took := time.Since(start)
	goruntime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || took > lookTime || used > lookMemory {
		t.Errorf("%s took %s and %d bytes: %v", name, took, used, err)
	} else if testing.Verbose() {
		t.Logf("%s took %s and %d KB", name, took, used>>10)
	}
}

func TestWhatAPodWritesIntoOurTableIsSeenAndMended(t *testing.T) {
	const chain, set, service = "outbound", "exclude-inbound-ports.0", 13
	want := rules(t, nil)
	cases := map[string]spoil{
		"a rule whose comment is longer than its userdata":  raw(forgedRule(chain, []byte{0, 255})),
		"a rule whose userdata is longer than it is":        raw(forgedRule(chain, []byte{1, 255})),
		"a set whose userdata is longer than it is":         raw(forgedSet("evil", service, 2, []byte{7, 255})),
		"a set of ours whose userdata is longer than it is": raw(forgedSet("exclude-inbound-ports.1", service, 2, []byte{7, 255})),
		"an element whose userdata is longer than it is":    raw(forgedElements(set, []byte{0, 255}, []byte{9, 9})),
		"a set of ports that have one byte":                 raw(forgedSet("evil.0", service, 1, nil), forgedElements("evil.0", nil, []byte{9})),
		"a set of a type that nobody knows":                 raw(forgedSet("evil.0", 0x3f, 4, nil)),
		"sets of more generations than there ever are":      raw(manySets(300)...),
		"a rule with a comment of more lines":               raw(forgedRule(chain, []byte("\x00\x05x\n:\ny"))),
		"a chain with a name of more lines":                 raw(forgedChain(iptables.TableName, "x\n- y"), forgedRule("x\n- y", nil)),
		"a chain that nothing calls":                        script("add chain T evil"),
		"a chain behind a hook":                             script("add chain T evil { type filter hook input priority 0; policy drop; }"),
		"a map of verdicts":                                 script("add map T evil { type inet_service : verdict; elements = { 80 : drop }; }"),
		"an object":                                         script("add counter T evil"),
		"a policy of drop":                                  script("chain T outbound { policy drop; }"),
		"a table that sleeps":                               script("add table T { flags dormant; }"),
		"a rule of expressions that we never write":         script("insert rule T outbound limit rate 1/second log prefix \"x\" accept"),
		"a rule that jumps away":                            script("add chain T evil\ninsert rule T inbound jump evil"),
		"a set with an element too many":                    script("add element T exclude-inbound-ports.0 { 8080 }"),
		"a set with another element":                        script("delete element T exclude-inbound-ports.0 { 15020 }\nadd element T exclude-inbound-ports.0 { 8080 }"),
		"a set with an element that has a comment":          script("delete element T exclude-inbound-ports.0 { 15020 }\nadd element T exclude-inbound-ports.0 { 15020 comment \"x\" }"),
		"a set that forgets":                                remade(want, func(s *nft.Set) { s.HasTimeout, s.Timeout = true, time.Hour }),
		"a set that rules may fill":                         remade(want, func(s *nft.Set) { s.Dynamic = true }),
		"a set with a comment":                              remade(want, func(s *nft.Set) { s.Comment = "x" }),
		"a set that counts":                                 remade(want, func(s *nft.Set) { s.Counter = true }),
		"a set of no more than some":                        remade(want, func(s *nft.Set) { s.Size = 100 }),
	}
	cases["a map of verdicts that a rule of our chain asks"] = script(
		"add chain T next\nadd map T evil { type inet_service : verdict; elements = { 80 : jump next }; }\nadd rule T outbound tcp dport vmap @evil\n")
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) { mustMend(t, want, spoil) })
	}
}

func manySets(n int) (out []rawMessage) {
	for i := range n {
		out = append(out, forgedSet(fmt.Sprintf("exclude-inbound-ports.x%d", i), 13, 2, nil))
	}
	return out
}

// The text of these rules is that of ours, or nearly so; what they do is not.
func TestRulesThatDoSomethingElseAreSeenAndMended(t *testing.T) {
	want := rules(t, func(s *iptables.Spec) {
		s.Mode, s.LoopbackCIDR = iptables.ModeTProxy, netip.MustParsePrefix("127.0.0.0/8")
	})
	bit := func(e *expr.Bitwise) []byte { return append(make([]byte, e.Len-1), 1) }
	cases := map[string]spoil{
		"another comparison": altered(want, func(e *expr.Cmp) bool { e.Op = expr.CmpOpGte; return true }),
		"the opposite":       altered(want, func(e *expr.Cmp) bool { e.Op ^= expr.CmpOpNeq; return true }),
		"bits turned over":   altered(want, func(e *expr.Bitwise) bool { e.Xor = bit(e); return true }),
		"another mask":       altered(want, func(e *expr.Bitwise) bool { e.Mask = bit(e); return true }),
		"another register":   altered(want, otherRegister()),
		"what comes first":   altered(want, func(e *expr.Meta) bool { e.Key = expr.MetaKeyPRIORITY; return true }),
		"another set": altered(want, func(e *expr.Lookup) bool {
			was := e.SetName
			e.SetName = "exclude-outbound-ports.0"
			return was != e.SetName
		}),
		"not in the set":               altered(want, func(e *expr.Lookup) bool { e.Invert = true; return true }),
		"another port":                 altered(want, func(e *expr.Immediate) bool { e.Data = []byte{1, 1}; return len(e.Data) == 2 }),
		"a redirect to random ports":   altered(want, func(e *expr.Redir) bool { e.Flags |= unix.NF_NAT_RANGE_PROTO_RANDOM; return true }),
		"another verdict":              altered(want, func(e *expr.Verdict) bool { e.Kind = expr.VerdictAccept; return true }),
		"a proxy of one family, whole": altered(want, func(e *expr.TProxy) bool { e.Family = byte(nft.TableFamilyIPv4); e.RegAddr = 1; return true }),
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) { mustMend(t, want, spoil) })
	}
}

// The text of chains knows two hooks: another one must not pass for either.
func TestAChainBehindAnotherHookIsSeenAndMended(t *testing.T) {
	const name = "dns-zones-outbound"
	want := rules(t, func(s *iptables.Spec) { s.DNS = iptables.DNSAll })
	for hook, change := range map[string]func(*nft.Chain){
		"another hook":     func(c *nft.Chain) { c.Hooknum = nft.ChainHookForward },
		"another priority": func(c *nft.Chain) { c.Priority = new(nft.ChainPriority(1000)) },
		"no hook":          func(c *nft.Chain) { c.Hooknum, c.Priority, c.Type = nil, nil, "" },
		"a policy of drop": func(c *nft.Chain) { c.Policy = new(nft.ChainPolicyDrop) },
		"another name":     func(c *nft.Chain) { c.Name += "2" },
	} {
		t.Run(hook, func(t *testing.T) { mustMend(t, want, moved(want, name, change)) })
	}
}

// moved makes a chain anew in another place, with its rules.
func moved(want iptables.Ruleset, name string, change func(*nft.Chain)) spoil {
	return func(t *testing.T, ns *netns.NS) {
		t.Helper()
		mustTransact(t, ns, func(c *nft.Conn) error {
			at := &nft.Chain{
				Table: ownTable(), Name: name, Type: nft.ChainTypeFilter, Hooknum: nft.ChainHookOutput, Priority: new(nft.ChainPriority(-305)),
			}
			c.FlushChain(at)
			c.DelChain(at)
			change(at)
			c.AddChain(at)
			for _, chain := range want.Chains {
				for _, r := range chain.Rules {
					if chain.Name == name {
						c.AddRule(&nft.Rule{Table: at.Table, Chain: at, Exprs: encode(r, ".0"), UserData: ruleUserdata(r)})
					}
				}
			}
			return c.Flush()
		})
	}
}

// otherRegister uses register 2 where ours use 1, which makes no difference to any packet.
func otherRegister() func(expr.Any) bool {
	return func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Meta:
			e.Register = 2
		case *expr.Cmp:
			e.Register = 2
			return true
		}
		return false
	}
}

func TestApplyEndsWhileAPodFlushesTheTable(t *testing.T) {
	ns, b := kerneltest.New(t), newByPath(t)
	wants := []iptables.Ruleset{rules(t, nil), rules(t, func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy })}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			_ = transact(ns, func(c *nft.Conn) error { c.DelTable(ownTable()); return c.Flush() })
		}
	}()
	for i := range 20 {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), lookTime)
		_, err := b.Apply(ctx, ns.Path(), wants[i%2])
		cancel()
		if took := time.Since(start); took > lookTime+time.Second {
			t.Errorf("apply took %s: %v", took, err)
		}
	}
	close(stop)
	<-stopped
	mustApply(t, b, ns, rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 }))
	mustHold(t, ns, rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 }))
}

// The processes of a pod can open its namespace's file, and lock it.
func TestApplyPassesAPodsLockOver(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	pod, err := netns.Open(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	if err := unix.Flock(pod.Fd(), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	mustApply(t, b, ns, want)
	if took := time.Since(start); took > lookTime {
		t.Errorf("apply took %s", took)
	}
	mustHold(t, ns, want)
}
