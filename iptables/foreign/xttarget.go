package foreign

import "encoding/binary"

// xtTarget returns what a target of iptables does that decides, or "". info is the target's own data (xt_*.h), which nf_tables and
// x_tables return alike.
func xtTarget(o Ours, name string, info []byte, nat bool) string {
	if nat {
		return map[string]string{
			"REDIRECT": "redirects to another port", "DNAT": "rewrites the destination", "NETMAP": "rewrites the destination", "NFQUEUE": "queues",
		}[name]
	}
	switch name {
	case "MARK": // struct xt_mark_tginfo2: mark, mask
		if len(info) < 8 || o.hasMark(binary.NativeEndian.Uint32(info)) {
			return "sets a mark that our rules match"
		}
	case "CONNMARK":
		if o.marks {
			return "sets a mark of connections or packets"
		}
	case "CT": // struct xt_ct_target_info: flags, of which 1 is notrack, and zone
		if len(info) < 4 || info[0]&1 != 0 {
			return "takes packets from connection tracking"
		}
		if binary.NativeEndian.Uint16(info[2:]) != 0 {
			return "puts packets into another zone of connection tracking"
		}
	}
	return map[string]string{
		"REJECT": "rejects", "NFQUEUE": "queues", "TPROXY": "gives packets to a socket", "NOTRACK": "takes packets from connection tracking",
	}[name]
}
