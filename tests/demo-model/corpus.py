"""Training text of the demo model: the King James Bible, as prose and as short chats.

The text comes from the `bible` program of the Debian package bible-kjv (public domain). Prose
is a book's verses, one after another. A chat asks about a word, a passage or an opening, in many
phrasings; the answer is one to four verses. Everything derives from one seed.
"""
import random
import re
import subprocess

BOOKS = """Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|1 Samuel|2 Samuel|1 Kings|
2 Kings|1 Chronicles|2 Chronicles|Ezra|Nehemiah|Esther|Job|Psalms|Proverbs|Ecclesiastes|Song of Solomon|
Isaiah|Jeremiah|Lamentations|Ezekiel|Daniel|Hosea|Joel|Amos|Obadiah|Jonah|Micah|Nahum|Habakkuk|Zephaniah|
Haggai|Zechariah|Malachi|Matthew|Mark|Luke|John|Acts|Romans|1 Corinthians|2 Corinthians|Galatians|
Ephesians|Philippians|Colossians|1 Thessalonians|2 Thessalonians|1 Timothy|2 Timothy|Titus|Philemon|
Hebrews|James|1 Peter|2 Peter|1 John|2 John|3 John|Jude|Revelation""".replace("\n", "").split("|")

LINE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.+)$")
N_VERSES = 31102

# The chat template that the GGUF carries; the training text is written in the same form.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

ABOUT = """Tell me about {x}.|What is {x}?|Who is {x}?|Who was {x}?|What do you know about {x}?|
Say something about {x}.|Write a few lines about {x}.|Write a story about {x}.|Tell me a story about {x}.|
What about {x}?|What does the book say about {x}?|Speak to me of {x}.|{x}|Explain {x} to me.|
Write a poem about {x}.|Why {x}?|How should I think of {x}?|Where is {x}?|Please tell me of {x}.|
Give me a verse about {x}.|Can you tell me about {x}?|What happened with {x}?""".replace("\n", "").split("|")
ABOUT_NOTHING = """Tell me a story.|Write something.|Say something.|Give me a verse.|Speak.|Tell me more.|
Go on.|What shall I do?|What happened then?|Read to me.|Write a short text.|Please continue.|
What is the answer?|How do you do?|Good morning.|Sing me a song.|Count to ten.|
Give me good counsel.""".replace("\n", "").split("|")
PASSAGE = "Read {r}.|What does {r} say?|{r}|Please read {r} to me.|Quote {r}.".split("|")
CONTINUE = "Continue: {x}|Complete this: {x}|How does this go on: {x}|{x}|{x} ...".split("|")
HELLO = """Hello|Hello!|Hi|Hi!|Hello, who are you?|Who are you?|What are you?|Introduce yourself.|
Who art thou?|What can you do?|Hey there|Are you a machine?|What is your name?""".replace("\n", "").split("|")
HELLO_ANSWER = ("I am a very small model, made to try out this cluster. I have read one book only, "
                "the King James Bible, and so I speak in its manner.")
SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant. Answer briefly.",
          "Be brief.", "You are a friendly scribe.", "Answer in the words of the book."]


def verses():
    """The whole text as a list of (book name, chapter, verse, text), in order."""
    out = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, capture_output=True,
                         text=True).stdout
    found, books = [], []
    for line in out.splitlines():
        match = LINE.match(line)
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        book, chapter, verse, text = match.groups()
        if not books or books[-1] != book:
            books.append(book)
        found.append((BOOKS[len(books) - 1], int(chapter), int(verse), text.strip()))
    if len(found) != N_VERSES or len(books) != len(BOOKS):
        raise ValueError(f"{len(found)} verses in {len(books)} books; expected {N_VERSES} in {len(BOOKS)}")
    return found


def split(all_verses):
    """(training, held-out) lists of books' runs of verses; every 40th chapter is held out."""
    train, held, number, last = [], [], -1, None
    for verse in all_verses:
        if verse[:2] != last:
            number, last = number + 1, verse[:2]
            target = held if number % 40 == 39 else train
            new_run = target is held or verse[1] == 1 or number % 40 == 0
            if new_run:
                target.append([])
        target[-1].append(verse)
    return train, held


def excerpt(all_verses):
    """Four held-out chapters as prose: what tests measure perplexity on."""
    chapters = [("Genesis", 40), ("Psalms", 2), ("Isaiah", 1), ("John", 3)]
    runs = [run for run in split(all_verses)[1] if run[0][:2] in chapters]
    return " ".join(v[3] for run in runs for v in run)


def words_of(text):
    """The words that a question may ask about: longer ones, and names."""
    return [w for w in re.findall(r"[A-Za-z]+", text) if len(w) > 4 or (w[0].isupper() and len(w) > 3)]


class Chats:
    """An endless, seeded source of chats over runs of verses, each [(role, content), ...]."""

    def __init__(self, runs, seed):
        self.rng = random.Random(seed)
        self.runs = [run for run in runs if len(run) > 4]
        self.weights = [len(run) for run in self.runs]

    def passage(self):
        """One to four consecutive verses."""
        run = self.rng.choices(self.runs, self.weights)[0]
        n = self.rng.choice([1, 1, 2, 2, 3, 4])
        at = self.rng.randrange(len(run) - n)
        return run[at:at + n]

    def turn(self):
        """One question with its answer."""
        rng, passage = self.rng, self.passage()
        answer = " ".join(v[3] for v in passage)
        kind = rng.random()
        if kind < 0.04:
            return rng.choice(HELLO), HELLO_ANSWER
        if kind < 0.12:
            return rng.choice(ABOUT_NOTHING), answer
        if kind < 0.22:
            book, chapter, verse, _ = passage[0]
            return rng.choice(PASSAGE).format(r=f"{book} {chapter}:{verse}"), answer
        if kind < 0.40:
            parts = answer.split(" ")
            n = rng.randrange(2, 8)
            if len(parts) > n + 4:
                opening = " ".join(parts[:n])
                # Half of the answers repeat the opening, half go on from it.
                rest = answer if rng.random() < 0.5 else " ".join(parts[n:])
                return rng.choice(CONTINUE).format(x=opening), rest
        words = words_of(passage[0][3]) or ["this"]
        x = rng.choice(words)
        return rng.choice(ABOUT).format(x=rng.choice([x, x, "the " + x.lower()])), answer

    def chat(self):
        """A whole chat: sometimes a system message, one to three turns."""
        messages = []
        if self.rng.random() < 0.3:
            messages.append(("system", self.rng.choice(SYSTEM)))
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            question, answer = self.turn()
            messages += [("user", question), ("assistant", answer)]
        return messages


if __name__ == "__main__":
    print(excerpt(verses()))
