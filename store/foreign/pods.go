package foreign

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"io"
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/watch"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// pods are those of foreign JobSets. One that was passed once is passed until it is deleted, whatever its labels say.
type pods struct {
	kind
	jobSets *kind
}

// frameHeader is the length of a frame's header: how long the rest is.
const frameHeader = 4

// next reads a frame of a watch in protobuf.
func (*pods) next(from *bufio.Reader, into []byte) ([]byte, error) {
	header, err := from.Peek(frameHeader)
	if err != nil {
		return append(into, header...), err
	}
	frame := slices.Grow(into, frameHeader+int(binary.BigEndian.Uint32(header)))
	frame = frame[:frameHeader+binary.BigEndian.Uint32(header)]
	n, err := io.ReadFull(from, frame)
	return frame[:n], err
}

// drops reports whether a frame is of a pod that isn't to be cached: its JobSet was dropped, and the pod not passed
// before. Any other frame is passed, as is one that isn't as expected.
func (p *pods) drops(frame []byte) bool {
	event, pod, jobSet := podOf(frame)
	if pod == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	uid := maphash.String(seed, pod)
	switch {
	case !p.cached.Has(uid) && p.jobSets.isDropped(jobSet):
		return true
	case event == string(watch.Deleted):
		p.cached.Delete(uid)
	default:
		p.cached.Insert(uid)
	}
	return false
}

// podOf returns the event of a frame, the pod's UID and that of the JobSet that it names; none of a frame that isn't as
// expected. The numbers are those of fields in metav1.WatchEvent, runtime.RawExtension, runtime.Unknown, Pod and
// ObjectMeta. Decoding all of these types took ten times as long.
func podOf(frame []byte) (event, pod, jobSet string) {
	if len(frame) < frameHeader {
		return "", "", ""
	}
	frame = frame[frameHeader:]
	object, _ := bytes.CutPrefix(field(field(frame, 2), 1), []byte("k8s\x00"))
	metadata := field(field(object, 2), 1)
	for label := range fields(metadata, 11) {
		if string(field(label, 1)) == jobset.JobSetUIDKey {
			jobSet = string(field(label, 2))
		}
	}
	return string(field(frame, 1)), string(field(metadata, 5)), jobSet
}

// field returns the content of a message's first field of a number; nil if it has none.
func field(message []byte, number protowire.Number) []byte {
	for content := range fields(message, number) {
		return content
	}
	return nil
}

// fields returns the contents of a message's fields of a number, as far as the message is well-formed.
func fields(message []byte, number protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			found, kind, tag := protowire.ConsumeTag(message)
			if tag < 0 {
				return
			}
			size := protowire.ConsumeFieldValue(found, kind, message[tag:])
			if size < 0 {
				return
			}
			content, length := protowire.ConsumeBytes(message[tag:])
			if found == number && kind == protowire.BytesType && (length < 0 || !yield(content)) {
				return
			}
			message = message[tag+size:]
		}
	}
}
