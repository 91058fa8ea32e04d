package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the programs of the nft flavour cannot do, or only by starting a process, is asked of the kernel itself
// (linux/netfilter/nf_tables.h): which chains there are, and the deletion of a table that holds nothing.

const (
	sizeofNfgenmsg = 4
	policyAccept   = 1 // NF_ACCEPT
)

// kernelChain is a chain of nf_tables. Policy is that of a base chain, -1 of any other.
type kernelChain struct {
	table, name string
	policy      int
}

// kernelTables lists the tables of a family in the namespace of the calling thread.
func kernelTables(family uint32) ([]string, error) {
	var names []string
	err := dump(unix.NFT_MSG_GETTABLE, family, func(attrs map[uint16][]byte) {
		names = append(names, text(attrs[unix.NFTA_TABLE_NAME]))
	})
	return names, err
}

// kernelChains lists the chains of a family in the namespace of the calling thread.
func kernelChains(family uint32) ([]kernelChain, error) {
	var chains []kernelChain
	err := dump(unix.NFT_MSG_GETCHAIN, family, func(attrs map[uint16][]byte) {
		c := kernelChain{table: text(attrs[unix.NFTA_CHAIN_TABLE]), name: text(attrs[unix.NFTA_CHAIN_NAME]), policy: -1}
		if p := attrs[unix.NFTA_CHAIN_POLICY]; len(p) == 4 {
			c.policy = int(binary.BigEndian.Uint32(p))
		}
		chains = append(chains, c)
	})
	return chains, err
}

// dropTables deletes those of our tables that hold nothing but built-in chains which let everything pass, and in the others
// the sign that they are ours. The kernel itself refuses the deletion of a chain with rules and of a table with chains, so
// whatever somebody adds meanwhile stays.
func dropTables(family uint32, tables []string) error {
	if len(tables) == 0 {
		return nil
	}
	chains, err := kernelChains(family)
	if err != nil {
		return err
	}
	for _, name := range tables {
		own := slices.DeleteFunc(slices.Clone(chains), func(c kernelChain) bool { return c.table != name })
		err := error(unix.EBUSY)
		if !slices.ContainsFunc(own, func(c kernelChain) bool { return c.policy != policyAccept && c.name != madeTable }) {
			err = drop(family, name, own, true)
		}
		if errors.Is(err, unix.EBUSY) {
			err = drop(family, name, []kernelChain{{name: madeTable}}, false)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete empty table %s: %w", name, err)
		}
	}
	return nil
}

// drop deletes empty chains of a table, and the table if there are no others, in one transaction.
func drop(family uint32, table string, chains []kernelChain, whole bool) error {
	const flags = unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_NONREC
	batch := message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
	ends := 0
	del := func(kind uint16, attributes ...[]byte) {
		batch = append(batch, message(nft(kind), flags, family, 0, attributes...)...)
		ends++
	}
	for _, c := range chains {
		del(unix.NFT_MSG_DELCHAIN, attribute(unix.NFTA_CHAIN_TABLE, table), attribute(unix.NFTA_CHAIN_NAME, c.name))
	}
	if whole {
		del(unix.NFT_MSG_DELTABLE, attribute(unix.NFTA_TABLE_NAME, table))
	}
	batch = append(batch, message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)...)
	return exchange(batch, ends, nil)
}

// dump asks for all of a kind. A kernel without nf_tables has none.
func dump(kind uint16, family uint32, each func(attrs map[uint16][]byte)) error {
	err := exchange(message(nft(kind), unix.NLM_F_REQUEST|unix.NLM_F_DUMP, family, 0), 1, each)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	return err
}

func nft(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// message is a netlink message with netfilter's header.
func message(kind uint16, flags int, family uint32, resource uint16, attributes ...[]byte) []byte {
	body := slices.Concat(attributes...)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+sizeofNfgenmsg+len(body))) //nolint:gosec // a few names
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, uint16(flags)) //nolint:gosec // netlink's flags have 16 bits
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0)                  // sequence, port
	m = append(m, byte(family), unix.NFNETLINK_V0)         //nolint:gosec // NFPROTO numbers are small
	m = binary.BigEndian.AppendUint16(m, resource)
	return append(m, body...)
}

// attribute is a netlink attribute that holds a name.
func attribute(kind uint16, name string) []byte {
	length := unix.SizeofNlAttr + len(name) + 1
	a := binary.NativeEndian.AppendUint16(nil, uint16(length)) //nolint:gosec // a name
	a = append(binary.NativeEndian.AppendUint16(a, kind), name...)
	return append(a, make([]byte, 1+(4-length%4)%4)...)
}

// exchange sends messages and reads answers until so many of them have ended.
func exchange(messages []byte, ends int, each func(attrs map[uint16][]byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing that could be lost
	timeout := unix.Timeval{Sec: lockSeconds}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set time limit of netfilter socket: %w", err)
	}
	if err := unix.Sendto(fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask nf_tables: %w", err)
	}
	buf := make([]byte, 1<<16)
	for ends > 0 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("read answer of nf_tables: %w", err)
		}
		answers, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("read answer of nf_tables: %w", err)
		}
		for _, a := range answers {
			ended, err := answer(a, each)
			if err != nil {
				return err
			}
			if ended {
				ends--
			}
		}
	}
	return nil
}

// answer takes one message of the kernel; ended tells that it is the last one to a request.
func answer(a syscall.NetlinkMessage, each func(attrs map[uint16][]byte)) (ended bool, err error) {
	if a.Header.Type == unix.NLMSG_ERROR || a.Header.Type == unix.NLMSG_DONE {
		if len(a.Data) >= 4 {
			if errno := -int32(binary.NativeEndian.Uint32(a.Data)); errno > 0 { //nolint:gosec // a negative errno
				err = unix.Errno(uint32(errno))
			}
		}
		return true, err
	}
	if each != nil && len(a.Data) >= sizeofNfgenmsg {
		each(attributes(a.Data[sizeofNfgenmsg:]))
	}
	return false, nil
}

func attributes(data []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofNlAttr || length > len(data) {
			break
		}
		out[binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED] = data[unix.SizeofNlAttr:length]
		data = data[min(len(data), (length+3)&^3):]
	}
	return out
}

func text(name []byte) string { return strings.TrimRight(string(name), "\x00") }
