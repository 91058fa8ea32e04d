package kubelet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// pieces is the answer to ListPods, a ListPodsResponse of k8s.io/kubelet/pkg/apis/pods/v1alpha1. It is read pod by pod: decoded as a whole, the pods of a
// full node would be in memory twice, some megabytes every few seconds.
type pieces struct {
	read func(message []byte) error // which must not keep the message
}

// podsTag starts each pod in a ListPodsResponse: field 1, bytes.
const podsTag = 1<<3 | 2

// piecewise is the usual codec, but for pieces.
type piecewise struct{ encoding.CodecV2 }

// Unmarshal decodes an answer.
func (p piecewise) Unmarshal(data mem.BufferSlice, into any) error {
	if list, ok := into.(*pieces); ok {
		return list.unmarshal(bufio.NewReader(data.Reader()), data.Len())
	}
	return p.CodecV2.Unmarshal(data, into)
}

func (p *pieces) unmarshal(from *bufio.Reader, length int) error {
	var message []byte
	for {
		tag, err := binary.ReadUvarint(from)
		if errors.Is(err, io.EOF) {
			return nil
		}
		size, errSize := binary.ReadUvarint(from)
		switch {
		case err != nil || errSize != nil:
			return errors.New("the list of pods ends in the middle of a field")
		case tag != podsTag:
			return fmt.Errorf("the list of pods has a field with the tag %d", tag)
		case size > uint64(length):
			return fmt.Errorf("the list of pods has a pod of %d bytes, and %d in all", size, length)
		case size > uint64(cap(message)):
			message = make([]byte, size)
		}
		message = message[:size]
		if _, err := io.ReadFull(from, message); err != nil {
			return errors.New("the list of pods ends in the middle of a pod")
		}
		if err := p.read(message); err != nil {
			return err
		}
	}
}
