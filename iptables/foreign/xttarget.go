package foreign

import "encoding/binary"

// xtTarget returns, in words, how a target of iptables decides before our rules, or "" if it does not. info is the target's own data
// (xt_*.h), which nf_tables and x_tables return alike. The kernel accepts some targets in some tables only.
func xtTarget(o Ours, name string, info []byte) string {
	switch name {
	case "MARK": // struct xt_mark_tginfo2: mark, mask
		if len(info) < 8 || o.hasMark(binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:])) {
			return "sets a mark that our rules match"
		}
	case "CONNMARK":
		if o.marks || len(info) < 15 || info[12] == connmarkRestore || info[14] == connmarkRestore {
			return "sets a mark of connections or packets"
		}
	case "CT": // struct xt_ct_target_info: flags, of which 1 is notrack, and zone
		if len(info) < 4 || binary.NativeEndian.Uint16(info)&1 != 0 {
			return "takes packets from connection tracking"
		}
		if binary.NativeEndian.Uint16(info[2:]) != 0 {
			return "puts packets into another zone of connection tracking"
		}
	}
	return map[string]string{
		"REDIRECT": "redirects to another port", "DNAT": "rewrites the destination", "NETMAP": "rewrites the destination",
		"DNPT": "rewrites the destination", "SNPT": "rewrites the source", "REJECT": "rejects", "NFQUEUE": "queues",
		"TPROXY": "gives packets to a socket", "NOTRACK": "takes packets from connection tracking",
		"HMARK": "sets a mark that our rules match", "TEE": "copies packets to another host",
	}[name]
}

// connmarkRestore is XT_CONNMARK_RESTORE: the packet gets its connection's mark. It is byte 12 in struct xt_connmark_tginfo1, and byte 14
// in struct xt_connmark_tginfo2, where no other value of byte 12 is as large.
const connmarkRestore = 2
