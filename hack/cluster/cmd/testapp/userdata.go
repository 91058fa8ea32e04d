package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// userdata puts a rule, or a set, into a table of the inet family with bytes that nft would not write: a reader of the
// table has to survive them. It needs NET_ADMIN.
func userdata(args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("userdata", flag.ContinueOnError)
	flags.SetOutput(progress)
	table := flags.String("table", "", "the table")
	chain := flags.String("chain", "", "chain of the table that gets a rule which does nothing")
	set := flags.String("set", "", "name of a set of IPv4 addresses to be made")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *table == "" || (*chain == "") == (*set == "") {
		return errors.New("userdata wants -table, either -chain or -set, and the bytes in hexadecimal")
	}
	raw, err := hex.DecodeString(flags.Arg(0))
	if err != nil {
		return fmt.Errorf("read bytes: %w", err)
	}
	if *chain != "" {
		return send(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
			text(unix.NFTA_RULE_TABLE, *table), text(unix.NFTA_RULE_CHAIN, *chain), attribute(unix.NFTA_RULE_USERDATA, raw))
	}
	const typeIPv4 = 7 // nft's number of ipv4_addr
	return send(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE,
		text(unix.NFTA_SET_TABLE, *table), text(unix.NFTA_SET_NAME, *set), number(unix.NFTA_SET_KEY_TYPE, typeIPv4),
		number(unix.NFTA_SET_KEY_LEN, 4), number(unix.NFTA_SET_ID, 1), attribute(unix.NFTA_SET_USERDATA, raw))
}

// send makes a transaction of one message, and waits for the kernel's word.
func send(kind, flags uint16, attributes ...[]byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	limit := unix.NsecToTimeval(int64(5 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("limit netlink's answers: %w", err)
	}
	batch := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	batch = append(batch, message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags|unix.NLM_F_ACK, unix.NFPROTO_INET, 0, attributes...)...)
	batch = append(batch, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)...)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	answer := make([]byte, os.Getpagesize())
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("an answer of %d bytes that says nothing", n)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return fmt.Errorf("the kernel refuses: %w", unix.Errno(-code))
	}
	return nil
}

// message is one netlink message of the netfilter subsystem.
func message(kind, flags uint16, family byte, resource uint16, attributes ...[]byte) []byte {
	m := make([]byte, unix.NLMSG_HDRLEN+4)
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|flags)
	m[unix.NLMSG_HDRLEN] = family
	binary.BigEndian.PutUint16(m[unix.NLMSG_HDRLEN+2:], resource)
	for _, a := range attributes {
		m = append(m, a...)
	}
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	return m
}

// attribute is padded to four bytes; its length does not include the padding.
func attribute(kind uint16, data []byte) []byte {
	a := make([]byte, 4, 4+len(data)+3)
	binary.NativeEndian.PutUint16(a, uint16(4+len(data)))
	binary.NativeEndian.PutUint16(a[2:], kind)
	a = append(a, data...)
	return append(a, make([]byte, (4-len(a)%4)%4)...)
}

func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}
