package review

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
)

// What a request costs is known from its text, before anything typed is decoded of it: `{}` is two bytes, and a volume
// that it is decoded into takes hundreds.

// maxDepth is how deeply JSON may be nested. Kubernetes' objects need less than thirty.
const maxDepth = 200

// errMalformed is about text that is no JSON. What decodes it says where.
var errMalformed = errors.New("it is not JSON")

// Elements returns how many elements the lists of a JSON text have in all. Text that isn't JSON, or that is nested more
// deeply than 200 levels, is an error, and so is a quantity of many digits: 1e-100000000 takes minutes to decode.
func Elements(text []byte) (int, error) {
	n, err := measure(text)
	return n.elements, err
}

// counts are the elements of the lists of a JSON text.
type counts struct {
	elements int // all of them
	objects  int // those of the objects that a review is about: request.object and request.oldObject
}

// measure counts the elements of a JSON text, as Elements says.
func measure(text []byte) (counts, error) {
	end, n, err := value(text, space(text, 0))
	if err == nil && space(text, end) != len(text) {
		err = errMalformed
	}
	return n, err
}

// Member returns the text of an object's member; nil if there is none, or if text is no object. Of several by the name
// it is the last, which decoders take. A name with an escape isn't found.
func Member(text []byte, path ...string) []byte {
	for _, name := range path {
		var found []byte
		for key, member := range members(text) {
			if string(key) == name {
				found = member
			}
		}
		text = found
	}
	return text
}

// members returns the members of a JSON object, as far as it is well-formed.
func members(text []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, member []byte) bool) {
		at := space(text, 0)
		if at >= len(text) || text[at] != '{' {
			return
		}
		for at = space(text, at+1); at < len(text) && text[at] == '"'; at = space(text, at+1) {
			key, err := quoted(text, at)
			if err != nil {
				return
			}
			colon := space(text, key)
			if colon >= len(text) || text[colon] != ':' {
				return
			}
			begin := space(text, colon+1)
			end, _, err := value(text, begin)
			if err != nil || !yield(text[at+1:key-1], text[begin:end]) {
				return
			}
			if at = space(text, end); at >= len(text) || text[at] != ',' {
				return
			}
		}
	}
}

// value returns the end of the JSON value at a place, and how many elements its lists have. It looks at brackets,
// commas, strings and quantities alone: what is between them doesn't cost more when it is decoded.
func value(text []byte, at int) (end int, n counts, err error) {
	open := brackets{}
	for at < len(text) {
		begin := at
		switch c := text[at]; c {
		case '"':
			if at, err = quoted(text, at); err == nil {
				err = open.text(text[begin:at], text, at)
			}
		case '{', '[':
			at = space(text, at+1)
			if err = open.open(c); err == nil && c == '[' && at < len(text) && text[at] != ']' {
				open.element(&n)
			}
		case '}', ']':
			at++
			err = open.close(c)
		case ',':
			at++
			err = open.comma(&n)
		default:
			at = plain(text, at)
			err = open.value(bytes.TrimLeft(text[begin:at], ": \t\r\n"))
		}
		if err != nil || open.depth == 0 {
			return at, n, err
		}
	}
	return 0, counts{}, errMalformed
}

// brackets are those that are open at a place, and the last member's name of each object.
type brackets struct {
	lists [maxDepth]bool
	names [maxDepth][]byte
	depth int
}

// text takes a string, with its quotes, that ends at a place: the name of a member, or a value.
func (b *brackets) text(quoted, all []byte, end int) error {
	if next := space(all, end); b.inObject() && next < len(all) && all[next] == ':' {
		b.names[b.depth-1] = unescaped(quoted)
		return nil
	}
	return b.value(unescaped(quoted))
}

func (b *brackets) value(text []byte) error {
	if !b.isQuantity() {
		return nil
	}
	if err := checkQuantity(text); err != nil {
		return fmt.Errorf("%s: %w", b.path(), err)
	}
	return nil
}

// path returns the names of the members that are open, the innermost last.
func (b *brackets) path() string {
	var path strings.Builder
	for i, name := range b.names[:b.depth] {
		switch {
		case b.lists[i]:
			path.WriteString("[]")
		case i > 0:
			path.WriteByte('.')
			fallthrough
		default:
			fmt.Fprintf(&path, "%.63s", name)
		}
	}
	return path.String()
}

// namesQuantity reports whether a member of a name is a quantity (TestQuantities).
func namesQuantity(name []byte) bool {
	return string(name) == "divisor" || string(name) == "sizeLimit"
}

// namesQuantities reports whether each member of a member of a name is a quantity.
func namesQuantities(name []byte) bool {
	switch string(name) {
	case "allocatedResources", "capacity", "limits", "overhead", "requests", "resourceUsage", "resources":
		return true
	}
	return false
}

// isQuantity reports whether a value at this place is decoded into a quantity.
func (b *brackets) isQuantity() bool {
	return b.inObject() && (namesQuantity(b.names[b.depth-1]) ||
		b.depth > 1 && !b.lists[b.depth-2] && namesQuantities(b.names[b.depth-2]))
}

// What a quantity may have. Decoding one, and comparing it, costs what its digits cost, and 1e1000 has a thousand. The
// limits on a TrainJob are less, and say where.
const (
	maxQuantity = 64 // bytes
	maxExponent = 3  // digits
)

// checkQuantity returns an error for a quantity that costs much to decode.
func checkQuantity(text []byte) error {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || !bytes.ContainsRune([]byte("+-.0123456789"), rune(text[0])) {
		return nil // a name, or an object
	}
	exponent := bytes.IndexAny(text, "eE")
	if len(text) > maxQuantity || exponent >= 0 && len(bytes.TrimLeft(text[exponent+1:], "+-")) > maxExponent {
		return fmt.Errorf("the quantity %.20s has too many digits; write it with at most %d characters, and an exponent of "+
			"at most %d digits", text, maxQuantity, maxExponent)
	}
	return nil
}

// unescaped returns what a string says, without its quotes; nothing of one that isn't valid.
func unescaped(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return nil
	}
	return []byte(text)
}

func (b *brackets) open(bracket byte) error {
	if b.depth == maxDepth {
		return errors.New("it is nested too deeply")
	}
	b.lists[b.depth] = bracket == '['
	b.depth++
	return nil
}

func (b *brackets) close(bracket byte) error {
	if b.depth == 0 || b.lists[b.depth-1] != (bracket == ']') {
		return errMalformed
	}
	b.depth--
	return nil
}

func (b *brackets) comma(n *counts) error {
	if b.depth == 0 {
		return errMalformed
	}
	if b.lists[b.depth-1] {
		b.element(n)
	}
	return nil
}

func (b *brackets) inObject() bool { return b.depth > 0 && !b.lists[b.depth-1] }

// element counts an element of the list that was opened last.
func (b *brackets) element(n *counts) {
	n.elements++
	ofRequest := b.depth >= 3 && !b.lists[0] && !b.lists[1] && string(b.names[0]) == "request"
	if ofRequest && (string(b.names[1]) == "object" || string(b.names[1]) == "oldObject") {
		n.objects++
	}
}

// quoted returns the end of the string at a place.
func quoted(text []byte, at int) (end int, err error) {
	for begin := at + 1; begin < len(text); {
		end := bytes.IndexByte(text[begin:], '"')
		if end < 0 {
			break
		}
		escapes := end
		for escapes > 0 && text[begin+escapes-1] == '\\' {
			escapes--
		}
		if begin += end + 1; (end-escapes)%2 == 0 { // each pair is a backslash
			return begin, nil
		}
	}
	return 0, errMalformed
}

// plain returns the end of a number, a name or white space; at the least one byte further.
func plain(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '"', '{', '}', '[', ']', ',', ' ', '\t', '\n', '\r':
			return at
		}
	}
	return at
}

// space returns the place of the next byte that is no white space.
func space(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r') {
		at++
	}
	return at
}
