package foreign

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

func number32(kind uint16, n uint32) []byte {
	return rawnetlink.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

// expression returns an expression with attributes, as the kernel returns it.
func expression(name string, attributes ...[]byte) (out []byte) {
	out = append(out, rawnetlink.Text(unix.NFTA_EXPR_NAME, name)...)
	out = append(out, rawnetlink.Bytes(unix.NFTA_EXPR_DATA, joinBytes(attributes...))...)
	return rawnetlink.Bytes(unix.NFTA_LIST_ELEM, out)
}

func joinBytes(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// nested returns an attribute with data in it.
func nested(kind uint16, data []byte) []byte {
	return rawnetlink.Bytes(kind, rawnetlink.Bytes(unix.NFTA_DATA_VALUE, data))
}

func verdictTo(code int32, chain string) []byte {
	v := number32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v = append(v, rawnetlink.Text(unix.NFTA_VERDICT_CHAIN, chain)...)
	}
	return expression("immediate", number32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		rawnetlink.Bytes(unix.NFTA_IMMEDIATE_DATA, rawnetlink.Bytes(unix.NFTA_DATA_VERDICT, v)))
}

func compared(register, op uint32, data []byte) []byte {
	return expression("cmp", number32(unix.NFTA_CMP_SREG, register), number32(unix.NFTA_CMP_OP, op), nested(unix.NFTA_CMP_DATA, data))
}

func loadMeta(register, key uint32) []byte {
	return expression("meta", number32(unix.NFTA_META_DREG, register), number32(unix.NFTA_META_KEY, key))
}

func loadNetwork(register, offset, size uint32) []byte {
	return expression("payload", number32(unix.NFTA_PAYLOAD_DREG, register), number32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
		number32(unix.NFTA_PAYLOAD_OFFSET, offset), number32(unix.NFTA_PAYLOAD_LEN, size))
}

func setMeta(key uint32) []byte {
	return expression("meta", number32(unix.NFTA_META_SREG, 1), number32(unix.NFTA_META_KEY, key))
}

func masked(mask, xor uint32) []byte {
	return expression("bitwise", number32(unix.NFTA_BITWISE_SREG, 1), number32(unix.NFTA_BITWISE_DREG, 1), number32(unix.NFTA_BITWISE_LEN, 4),
		nested(unix.NFTA_BITWISE_MASK, native32(mask)), nested(unix.NFTA_BITWISE_XOR, native32(xor)))
}

func target(name string, revision uint32, info []byte) []byte {
	return expression("target", rawnetlink.Text(unix.NFTA_TARGET_NAME, name), number32(unix.NFTA_TARGET_REV, revision), rawnetlink.Bytes(unix.NFTA_TARGET_INFO, info))
}

func native32(numbers ...uint32) (out []byte) {
	for _, n := range numbers {
		out = binary.NativeEndian.AppendUint32(out, n)
	}
	return out
}

// nowhere returns packets of a namespace with one device and one address.
func nowhere() packets {
	around := surroundings{
		known: true, devices: map[uint32]string{1: "lo", 2: "eth0"},
		local: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.244.1.5/32"), netip.MustParsePrefix("2001:db8::5/128")},
	}
	return packets{marks: 1337, around: func() surroundings { return around }}
}

// ruleCase is a rule, and what it does.
type ruleCase struct {
	rule []byte
	want string
}

func conditionCases() map[string]ruleCase {
	drop := verdictTo(verdictDrop, "")
	tcp, udp := []byte{unix.IPPROTO_TCP}, []byte{unix.IPPROTO_UDP}
	return map[string]ruleCase{
		"nothing":                           {nil, ""},
		"a counter":                         {expression("counter"), ""},
		"a log":                             {expression("log"), ""},
		"accept":                            {verdictTo(verdictAccept, ""), ""},
		"return":                            {verdictTo(unix.NFT_RETURN, ""), ""},
		"drop":                              {drop, "drops"},
		"a queue as a verdict":              {verdictTo(7<<16|verdictQueue, ""), "queues packets for a program"},
		"stolen":                            {verdictTo(2, ""), "is not understood: a verdict"},
		"what follows a verdict":            {joinBytes(verdictTo(verdictAccept, ""), drop), ""},
		"a new expression":                  {expression("teleport"), "is not understood: expression teleport"},
		"two effects":                       {joinBytes(expression("notrack"), drop), "drops, switches connection tracking off"},
		"another protocol":                  {joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_EQ, udp), drop), ""},
		"not TCP":                           {joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_NEQ, tcp), drop), ""},
		"not UDP":                           {joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_NEQ, udp), drop), "drops"},
		"less than UDP":                     {joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_LT, udp), drop), "drops"},
		"the protocol of IPv4's header":     {joinBytes(loadNetwork(1, protocolOffset, 1), compared(1, unix.NFT_CMP_EQ, udp), drop), ""},
		"a register that was overwritten":   {joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), loadMeta(8, unix.NFT_META_MARK), compared(1, unix.NFT_CMP_EQ, udp), drop), "drops"},
		"one inside of a longer one":        {joinBytes(loadNetwork(9, 16, 4), loadNetwork(1, 0, 16), compared(9, unix.NFT_CMP_EQ, []byte{9, 9, 9, 9}), drop), "drops"},
		"the middle of one":                 {joinBytes(loadNetwork(1, 12, 8), loadMeta(9, unix.NFT_META_MARK), compared(1, unix.NFT_CMP_EQ, []byte{9, 9, 9, 9}), drop), "drops"},
		"another register":                  {joinBytes(loadMeta(2, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_EQ, udp), drop), "drops"},
		"an effect before its condition":    {joinBytes(expression("notrack"), loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_EQ, udp)), "switches connection tracking off"},
		"another destination":               {joinBytes(loadNetwork(1, 16, 4), compared(1, unix.NFT_CMP_EQ, []byte{10, 244, 1, 6}), drop), ""},
		"the pod's destination":             {joinBytes(loadNetwork(1, 16, 4), compared(1, unix.NFT_CMP_EQ, []byte{10, 244, 1, 5}), drop), "drops"},
		"the pod's network":                 {joinBytes(loadNetwork(1, 16, 2), compared(1, unix.NFT_CMP_EQ, []byte{10, 244}), drop), "drops"},
		"an address of lo":                  {joinBytes(loadNetwork(1, 16, 4), compared(1, unix.NFT_CMP_EQ, []byte{127, 9, 9, 9}), drop), "drops"},
		"the source of what comes in":       {joinBytes(loadNetwork(1, 12, 4), compared(1, unix.NFT_CMP_EQ, []byte{10, 244, 1, 6}), drop), "drops"},
		"a protocol behind source and port": {joinBytes(loadNetwork(1, 12, 0), compared(1, unix.NFT_CMP_EQ, nil), drop), "drops"},
		"no such device":                    {joinBytes(loadMeta(1, unix.NFT_META_IIFNAME), compared(1, unix.NFT_CMP_EQ, append([]byte("wg0"), make([]byte, 13)...)), drop), ""},
		"loopback by another device":        {joinBytes(loadMeta(1, unix.NFT_META_IIF), compared(1, unix.NFT_CMP_NEQ, native32(1)), loadNetwork(1, 16, 1), compared(1, unix.NFT_CMP_EQ, []byte{127}), drop), ""},
		"loopback not by another device":    {joinBytes(loadMeta(1, unix.NFT_META_IIF), compared(1, unix.NFT_CMP_NEQ, native32(2)), loadNetwork(1, 16, 1), compared(1, unix.NFT_CMP_EQ, []byte{127}), drop), "drops"},
		"loopback by a device that goes":    {joinBytes(loadMeta(1, unix.NFT_META_OIF), compared(1, unix.NFT_CMP_NEQ, native32(1)), loadNetwork(1, 16, 1), compared(1, unix.NFT_CMP_EQ, []byte{127}), drop), "drops"},
		"a device":                          {joinBytes(loadMeta(1, unix.NFT_META_IIFNAME), compared(1, unix.NFT_CMP_EQ, append([]byte("eth0"), make([]byte, 12)...)), drop), "drops"},
		"devices by the begin of a name":    {joinBytes(loadMeta(1, unix.NFT_META_IIFNAME), compared(1, unix.NFT_CMP_EQ, []byte("eth")), drop), "drops"},
		"a device by its index":             {joinBytes(loadMeta(1, unix.NFT_META_IIF), compared(1, unix.NFT_CMP_EQ, native32(2)), drop), "drops"},
		"an index of no device":             {joinBytes(loadMeta(1, unix.NFT_META_IIF), compared(1, unix.NFT_CMP_EQ, native32(9)), drop), ""},
	}
}

func effectCases() map[string]ruleCase {
	const all = ^uint32(0)
	return map[string]ruleCase{
		"a mark":                         {setMeta(unix.NFT_META_MARK), "sets a mark"},
		"our bits":                       {joinBytes(loadMeta(1, unix.NFT_META_MARK), masked(all, 1), setMeta(unix.NFT_META_MARK)), "sets a mark"},
		"our bits to 0":                  {joinBytes(loadMeta(1, unix.NFT_META_MARK), masked(all&^1, 0), setMeta(unix.NFT_META_MARK)), "sets a mark"},
		"other bits":                     {joinBytes(loadMeta(1, unix.NFT_META_MARK), masked(all&^0x4000, 0x4000), setMeta(unix.NFT_META_MARK)), ""},
		"bits of something else":         {joinBytes(loadMeta(1, unix.NFT_META_CPU), masked(all&^0x4000, 0x4000), setMeta(unix.NFT_META_MARK)), "sets a mark"},
		"bits that change twice":         {joinBytes(loadMeta(1, unix.NFT_META_MARK), masked(all, 1), masked(all&^0x4000, 0x4000), setMeta(unix.NFT_META_MARK)), "sets a mark"},
		"a priority":                     {setMeta(unix.NFT_META_PRIORITY), ""},
		"the type of a packet":           {setMeta(unix.NFT_META_PKTTYPE), "is not understood: what it sets by meta"},
		"MARK, other bits":               {target("MARK", 2, native32(0x40000, 0xff0000)), ""},
		"MARK, our bits":                 {target("MARK", 2, native32(0, 0x1)), "sets a mark"},
		"MARK of another revision":       {target("MARK", 3, native32(0x40000, 0xff0000)), "sets a mark"},
		"MARK, cut":                      {target("MARK", 2, native32(0x40000)), "sets a mark"},
		"CONNMARK restores other bits":   {target("CONNMARK", 1, native32(0, 0xff0000, 0xff0000, connMarkRestore)), ""},
		"CONNMARK restores all":          {target("CONNMARK", 1, native32(0, all, all, connMarkRestore)), "sets a mark"},
		"CONNMARK 2 restores other bits": {target("CONNMARK", 2, append(native32(0, 0xff0000, 0xff0000), 0, 0, connMarkRestore, 0)), ""},
		"CONNMARK 2 shifts":              {target("CONNMARK", 2, append(native32(0, 0xff0000, 0xff0000), 1, 16, connMarkRestore, 0)), "sets a mark"},
		"CONNMARK of another revision":   {target("CONNMARK", 3, native32(0, 0xff0000, 0xff0000, connMarkRestore)), "sets a mark"},
		"CONNMARK saves":                 {target("CONNMARK", 1, native32(0, all, all, connMarkSave)), ""},
		"CT without tracking":            {target("CT", 2, native32(ctUntracked)), "switches connection tracking off"},
		"CT with a helper":               {target("CT", 0, append(native32(0, 0, 0), []byte("ftp\x00")...)), "sets a zone of connection tracking, sets a helper of connection tracking"},
		"TPROXY":                         {target("TPROXY", 1, nil), "gives packets to another socket"},
		"LOG":                            {target("LOG", 0, nil), ""},
		"TCPMSS":                         {target("TCPMSS", 0, nil), ""},
		"SET":                            {target("SET", 3, append(make([]byte, 8), 0xff, 0xff, 0, 0)), ""},
		"SET with a map":                 {target("SET", 3, make([]byte, 12)), "sets a mark"},
		"a new target":                   {target("TELEPORT", 0, nil), "is not understood: target TELEPORT"},
		"a map of verdicts":              {expression("lookup", number32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT)), "decides by a map"},
		"a set":                          {joinBytes(expression("lookup", rawnetlink.Text(unix.NFTA_LOOKUP_SET, "s")), verdictTo(verdictAccept, "")), ""},
		"a named counter":                {expression("objref", number32(unix.NFTA_OBJREF_IMM_TYPE, unix.NFT_OBJECT_COUNTER)), ""},
		"a named timeout":                {expression("objref", number32(unix.NFTA_OBJREF_IMM_TYPE, unix.NFT_OBJECT_CT_TIMEOUT)), "sets a timeout of connection tracking"},
		"a new destination":              {expression("nat", number32(unix.NFTA_NAT_TYPE, 1)), "changes the destination"},
		"an MSS": {expression("exthdr", number32(unix.NFTA_EXTHDR_SREG, 1), number32(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT),
			rawnetlink.Bytes(unix.NFTA_EXTHDR_TYPE, []byte{tcpOptionMSS})), ""},
	}
}

func TestReadRule_byExpression(t *testing.T) {
	cases := conditionCases()
	maps.Copy(cases, effectCases())
	for name, c := range cases {
		got := readRule(nowhere(), unix.NFPROTO_IPV4, c.rule)
		if got.String() != c.want {
			t.Errorf("%s: %q, want %q", name, got.String(), c.want)
		}
	}
}

// A rule that a pod has written may be cut anywhere, or changed.
func TestReadRule_damagedRule_doesNotPanic(t *testing.T) {
	rule := joinBytes(loadMeta(1, unix.NFT_META_L4PROTO), compared(1, unix.NFT_CMP_EQ, []byte{17}), loadNetwork(9, 16, 4), compared(9, unix.NFT_CMP_EQ, []byte{1, 2, 3, 4}),
		loadMeta(1, unix.NFT_META_MARK), masked(1, 2), setMeta(unix.NFT_META_MARK), target("CONNMARK", 2, native32(1, 2, 3, 4)), verdictTo(unix.NFT_JUMP, "x"))
	for i := range rule {
		readRule(nowhere(), unix.NFPROTO_IPV6, rule[:i])
		for _, b := range []byte{0, 1, 8, 23, 0xff} {
			changed := append([]byte(nil), rule...)
			changed[i] = b
			readRule(nowhere(), unix.NFPROTO_IPV4, changed)
			readRule(packets{all: true}, unix.NFPROTO_INET, changed)
		}
	}
}

func FuzzReadRule(f *testing.F) {
	f.Add(byte(unix.NFPROTO_IPV4), joinBytes(loadNetwork(1, 16, 4), masked(1, 2), compared(1, unix.NFT_CMP_EQ, []byte{1, 2, 3, 4}), verdictTo(unix.NFT_JUMP, "x")))
	f.Fuzz(func(_ *testing.T, family byte, rule []byte) { readRule(nowhere(), family, rule) })
}
