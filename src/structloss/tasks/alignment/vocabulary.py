"""Frequent English words by what they can be in a sentence; all of them are in CMUdict."""


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split("|")]


PEOPLE = _words("""
boy girl woman man child teacher doctor farmer sailor soldier painter singer driver writer lawyer nurse baker pilot
captain student neighbor father mother brother sister uncle cousin grandmother king queen prince judge guard thief
tourist merchant butcher hunter engineer artist actor author editor officer visitor stranger friend guest clerk waiter
gardener plumber carpenter scientist professor musician reporter shepherd voyager
""")

ANIMALS = _words("""
dog cat horse cow sheep goat pig rabbit fox wolf bear lion tiger monkey elephant mouse owl eagle duck goose chicken
turtle fish snake frog spider bee
""")

THINGS = _words("""
book letter picture map box bag basket bottle cup plate spoon knife fork table chair lamp clock mirror window door key
ring coin watch hat coat shirt shoe glove ball toy guitar piano violin drum candle match rope chain wheel engine bicycle
boat ship train truck wagon hammer ladder shovel bucket brush pencil pen paper newspaper magazine envelope ticket
camera telephone radio television computer garage treasure measure stone rock brick branch leaf flower apple orange
banana cherry onion potato tomato carrot cake cookie sandwich pie cheese egg loaf meal breakfast dinner soup jar jug
blanket pillow curtain carpet towel needle button pocket wallet umbrella package present secret story song poem joke
question answer message report plan idea lesson
""")

ADJECTIVES = _words("""
old young big small little large tall short long thin thick heavy light dark bright quiet loud soft hard warm cold hot
cool wet dry clean dirty new fresh strange famous common rare cheap useful broken empty full round square flat narrow
wide deep strong weak quick slow gentle rough smooth sharp yellow green blue red black white brown purple golden silver
wooden pretty ugly clever foolish brave shy happy sad angry tired hungry thirsty sleepy lonely lucky curious honest
usual unusual joyful noisy enormous ancient
""")

DID = _words("""
found lost took brought carried dropped kept hid showed sold bought borrowed painted cleaned washed fixed broke made
wanted liked loved hated watched noticed remembered forgot described followed chose moved pushed pulled lifted threw
caught opened closed touched covered measured studied mentioned destroyed enjoyed used needed shared saved counted
returned received collected examined discovered admired
""")

DO = _words("""
find lose take bring carry drop keep hide show sell buy borrow paint clean wash fix break make want like love hate watch
notice remember forget describe follow choose move push pull lift throw catch open close touch cover measure study
mention destroy enjoy use need share save count return receive collect examine discover admire
""")

WENT = _words("""
walked ran slept waited laughed cried smiled danced sang shouted whispered worked rested played arrived left stayed
returned appeared disappeared traveled hurried wandered fell jumped climbed swam listened talked argued
""")

SAID = _words("said thought believed knew hoped heard agreed explained promised decided")

HOW = _words("""
slowly quickly quietly loudly carefully happily sadly gently suddenly easily often always never rarely usually finally
together alone again early late outside inside upstairs
""")

WHERE = _words("""
garden kitchen house school church village town city forest field river lake ocean beach island mountain valley bridge
road street market shop office factory hospital library museum theater station airport harbor hotel restaurant castle
tower cave barn farm park yard hall cellar attic bedroom corner
""")

PREPOSITIONS = _words("in near behind beside by from to around across through")

WHEN = _phrases("""
yesterday|today|last night|last week|last summer|last winter|this morning|this evening|one day|every morning|
every night|on Monday|on Friday|in the morning|in the afternoon|after lunch|after school|before dinner|at noon|
at midnight|during the storm|in the spring|in July|on Thursday|two years ago|an hour ago|a month ago
""")

NAMES = _words("""
John Mary Peter Susan George Alice Henry Helen Robert Julia Thomas Sarah Michael Laura David Emma Joyce Roy Hugh Ruth
Keith Ethan Zoe Victor Vera Charles Jeff
""")

NUMBERS = _words("two three four five six seven eight nine ten eleven twelve twenty thirty fifty")
