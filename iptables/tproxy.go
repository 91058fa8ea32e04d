package iptables

import "slices"

// divert returns the chains for packets that reach the pod, before any address is rewritten: they drop invalid packets, and in TPROXY mode
// give packets to the proxy's socket unchanged.
func divert(s Spec, d *declared, others []Chain) (out []Chain) {
	in := &rules{}
	if s.DropInvalid || s.divertsInbound() {
		in.excludeInterfaces(iif, s.ExcludeInterfaces)
	}
	if s.DropInvalid {
		in.add("packets of no known connection", Action{Verb: Drop}, tcp(), state(Invalid))
	}
	if s.divertsInbound() {
		for _, name := range s.RerouteInterfaces {
			in.add("traffic of virtual machines behind the pod is not inbound", direct(), iif(name))
		}
		divertInbound(s, d, in)
		out = markOutbound(s, d, slices.DeleteFunc(slices.Clone(others), func(c Chain) bool { return c.Name != chainLostOut }))
	}
	return append(out, chain(chainDivert, Filter, Prerouting, divertPriority, *in)...)
}

func divertInbound(s Spec, d *declared, r *rules) {
	// The proxy's own mark comes in on lo. A packet from elsewhere may carry the mark of another rule set that sees it first, while one
	// backend takes over from another. Saved to the connection, that mark would send the answers to a client back into the pod.
	r.add(commentInName, Action{Verb: SaveMark}, marked(markDiverted), inLo(), tcp())
	r.add("the application reaching itself stays direct", direct(), inLo(), not(marked(markSelf)))
	for _, p := range passthrough() {
		r.add("the proxy handing inbound traffic to the application", direct(), inLo(), family(p), addr(SrcAddr, p), tcp())
	}
	// Among them are forwarded answers to virtual machines, which must not be delivered here. What opens a connection is no answer,
	// even if the pod has tried to open one between the same addresses and ports.
	r.add("answers are not inbound", direct(), num(Direction, Reply), tcp(), not(opening()))
	ownPorts(s, d, r)
	excludeSources(s, d, r, SrcAddr, not(inLo())) // over lo comes the proxy, whose address may be in an excluded range
	captured := capturedInbound(s, d, r, DstPort)
	also := func(more ...Cond) []Cond { return append(more, captured...) }
	// A packet that opens a connection is not among them, whatever conntrack takes it for: see reused.
	r.add("packets of connections that the proxy holds", Action{Verb: Divert, Num: markDiverted}, append(also(state(Established|Related)), not(opening()))...)
	r.openConnections()
	captured = append(captured, s.listening()...)
	for _, lo := range s.loopbacks() {
		r.add("new connections go to the proxy", Action{Verb: TProxy, Port: s.InboundPort, Num: markDiverted},
			also(family(lo), not(addr(DstAddr, lo)))...)
	}
	for _, lo := range s.loopbacks() {
		r.add("without a proxy that listens nothing gets through", Action{Verb: Drop}, also(family(lo), not(addr(DstAddr, lo)))...)
	}
}

// markOutbound returns the chain that marks what must be routed back into the pod: the proxy's connections to it, and the application's answers to
// connections that the proxy made with a client's address.
func markOutbound(s Spec, d *declared, lost []Chain) []Chain {
	r := &rules{}
	r.excludeInterfaces(oif, s.ExcludeInterfaces)
	r.add("packets inside the pod", leaveTo(chainMarkLo), outLo())
	r.ask(lost)
	answersInName(r)
	guard(s, d, r)
	return append(chain(chainMark, Route, Output, manglePriority, *r), markInside(s)...)
}

// markInside returns the chain that marks packets on lo.
func markInside(s Spec) []Chain {
	r := &rules{}
	// Most of them are the proxy's to the application, and the commonest packets here. The kernel would look at the addresses of each, and route it anew.
	// Those of other connections may be the proxy's own, if connection tracking has forgotten one and the application spoke first.
	r.add("answers inside the pod are on their way", direct(), num(Direction, Reply), tcp(), not(opening()), status(Translated))
	r.add("diverted already", direct(), marked(markDiverted), tcp())
	// Envoy marks these itself. Others (HAProxy's usesrc, nginx's proxy_bind) cannot, and their connections would come back to them.
	for _, owner := range s.owners() {
		r.add(commentInName, Action{Verb: Divert, Num: markDiverted}, owner, tcp(), not(num(SrcType, Local)))
	}
	for _, owner := range s.owners() {
		for _, lo := range s.loopbacks() {
			r.add("the proxy reaching its own pod passes the inbound listener", mark(markSelf),
				owner, family(lo), not(addr(DstAddr, lo)), tcp())
		}
	}
	answersInName(r)
	return chain(chainMarkLo, Route, "", manglePriority, *r)
}

// answersInName adds a rule that sends the application's answers to the proxy.
func answersInName(r *rules) {
	r.add("answers to connections in a client's name", Action{Verb: RestoreMark}, num(ConnMark, markDiverted), tcp())
}

// guard drops what a socket of the application answers to a client that opens a connection to a captured port: only the proxy's listener may.
// The rules for inbound packets alone cannot hold this, because they do not decide which socket takes a packet:
//   - TPROXY takes a socket that the proxy has left behind for the same addresses and ports (TIME_WAIT, SYN_RECV), whether or not the proxy
//     still listens. TCP then looks for a listener itself, by the packet's destination, and finds the application's.
//   - Of a connection that it answers by a SYN cookie the kernel keeps nothing (tcp_syncookies). The client's next packet goes to the
//     application's listener, which takes the cookie for its own. Such an answer has no socket, hence no owner, and is dropped, too.
func guard(s Spec, d *declared, r *rules) {
	r.add("packets that answer no opening of a connection", direct(), tcp(), not(answering()))
	for _, name := range s.RerouteInterfaces {
		r.add("traffic of virtual machines behind the pod is not inbound", direct(), oif(name))
	}
	excludeSources(s, d, r, DstAddr)
	captured := capturedInbound(s, d, r, SrcPort)
	for _, owner := range s.owners() {
		r.add("the proxy's listener answers clients", direct(), tcp(), owner)
	}
	r.add("nobody else answers clients", Action{Verb: Drop}, captured...)
}
